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

#if !defined(__clang__)  // GCC's own header (bug 105593)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

GMTP_BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")

namespace gmtp {
namespace avx512 {
namespace {

#include "simd_avx512.h"

#include "products.inl"

#include "formats.inl"

#include "elementwise.inl"

#include "attention.inl"

}  // namespace
}  // namespace avx512
GMTP_END_TARGET

const Isa isa_avx512 = {
    "avx512",
    avx512::product,
    avx512::quantise,
    avx512::levels4,
    avx512::values,
    avx512::rms_norm,
    avx512::gelu_mul,
    avx512::rotate,
    avx512::softcap,
    avx512::attention,
    avx512::store_row,
    avx512::read,
};

}  // namespace gmtp

#endif
