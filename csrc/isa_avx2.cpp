// Copyright 2026 The gemma_mtp_ros Authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "compiler.h"
#include "isa.h"

#if defined(__x86_64__)
#include <immintrin.h>

GMTP_BEGIN_TARGET("avx2,fma,f16c")

namespace gmtp {
namespace avx2 {
namespace {

#include "simd_avx2.h"

#include "products.inl"

#include "formats.inl"

#include "elementwise.inl"

#include "attention.inl"

}  // namespace
}  // namespace avx2
GMTP_END_TARGET

const Isa isa_avx2 = {
    "avx2",
    avx2::product,
    avx2::quantise,
    avx2::levels4,
    avx2::values,
    avx2::rms_norm,
    avx2::gelu_mul,
    avx2::rotate,
    avx2::softcap,
    avx2::attention,
    avx2::store_row,
    avx2::read,
};

}  // namespace gmtp

#endif
