// Copyright 2026 The gemma_mtp_ros Authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "compiler.h"
#include "isa.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gmtp {
namespace generic {
namespace {

#include "simd_128.h"

#include "products.inl"

#include "formats.inl"

#include "elementwise.inl"

#include "attention.inl"

}  // namespace
}  // namespace generic

const Isa isa_generic = {
    "generic",
    generic::product,
    generic::quantise,
    generic::levels4,
    generic::values,
    generic::rms_norm,
    generic::gelu_mul,
    generic::rotate,
    generic::softcap,
    generic::attention,
    generic::store_row,
    generic::read,
};

}  // namespace gmtp
