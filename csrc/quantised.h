// Copyright 2026 The gemma_mtp_ros Authors
// SPDX-License-Identifier: Apache-2.0

// Layout of quantised rows, of weights and of activations.
//
// Values along `in` form groups of 32 with one scale each. 16 groups form a block, one group to a
// lane: step s of a block holds, for each lane, the values 4 s .. 4 s + 3 of its group in 4 bytes.
// An integer dot product of 4-byte lanes then sums each group in its own lane, and scales apply to
// lanes, with no shuffle. The last block has as many lanes as there are groups left.
//
// int8: value + 128 in a byte; 8 steps of (lanes, 4) bytes. Values lie in [-127, 127].
// int4: value + 8 in half a byte; 4 double steps: step 2 t in the low half, 2 t + 1 in the high.

#pragma once

#include <cstdint>

namespace gmtp {

constexpr int GROUP = 32;
constexpr int LANES = 16;
constexpr int STEPS = 8;
constexpr int BLOCK_VALUES = GROUP * LANES;

inline int64_t groups_of(int64_t in) { return (in + GROUP - 1) / GROUP; }
inline int64_t blocks_of(int64_t in) { return (in + BLOCK_VALUES - 1) / BLOCK_VALUES; }

// Up to MAX_ROWS rows of activations, in whole blocks padded with zeros, a block's rows side by side.
struct QuantisedRows {
  int8_t* values;   // (blocks, rows, STEPS, LANES, 4)
  float* scales;    // (blocks, rows, LANES)
  int32_t* starts;  // (blocks, rows, LANES): what the sum of a group begins with
};

}  // namespace gmtp
