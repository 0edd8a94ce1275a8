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
#define DOTPROD

#if defined(__clang__)
GMTP_BEGIN_TARGET("dotprod")
#else
GMTP_BEGIN_TARGET("arch=armv8.2-a+dotprod")
#endif

namespace gmtp {
namespace dotprod {
namespace {

#include "simd_128.h"

#include "products.inl"

#include "formats.inl"

#include "elementwise.inl"

#include "attention.inl"

}  // namespace
}  // namespace dotprod
GMTP_END_TARGET

const Isa isa_dotprod = {
    "dotprod",
    dotprod::product,
    dotprod::quantise,
    dotprod::levels4,
    dotprod::values,
    dotprod::rms_norm,
    dotprod::gelu_mul,
    dotprod::rotate,
    dotprod::softcap,
    dotprod::attention,
    dotprod::store_row,
    dotprod::read,
};

}  // namespace gmtp

#endif
