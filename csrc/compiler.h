// Copyright 2026 The gemma_mtp_ros Authors
// SPDX-License-Identifier: Apache-2.0

// What GCC and Clang spell differently.

#pragma once

#define GMTP_PRAGMA(text) _Pragma(#text)

#if defined(__clang__)
#define UNROLL GMTP_PRAGMA(clang loop unroll(full))
// Functions between the two are compiled for the instruction set given.
#define GMTP_BEGIN_TARGET(set) \
  GMTP_PRAGMA(clang attribute push(__attribute__((target(set))), apply_to = function))
#define GMTP_END_TARGET GMTP_PRAGMA(clang attribute pop)
#else
#define UNROLL GMTP_PRAGMA(GCC unroll 16)
#define GMTP_BEGIN_TARGET(set) GMTP_PRAGMA(GCC push_options) GMTP_PRAGMA(GCC target(set))
#define GMTP_END_TARGET GMTP_PRAGMA(GCC pop_options)
#endif
