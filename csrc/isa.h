// Copyright 2026 The gemma_mtp_ros Authors
// SPDX-License-Identifier: Apache-2.0

// What each instruction set provides. isa_*.cpp compile the same templates for each.

#pragma once

#include <cstdint>

#include "kernels.h"
#include "quantised.h"

namespace gmtp {

constexpr int MAX_ROWS = 8;  // rows that share one pass over the weights

struct Rows {
  int n;
  const float* x[MAX_ROWS];  // readable up to a multiple of 16 values, zeros past `in`
  QuantisedRows q;
  float* y[MAX_ROWS];
  const int64_t* ids;  // weight row of each output; null: the output's own number
  int64_t first;       // weight row of output 0
};

struct Isa {
  const char* name;
  // Outputs [begin, end) of up to MAX_ROWS rows.
  void (*product)(const GmtpWeight& w, const Rows& rows, int64_t begin, int64_t end);
  // Writes row `slot` of `slots` rows.
  void (*quantise)(const float* x, int64_t in, float gain, int32_t format, int slot, int slots,
                   const QuantisedRows& out);
  void (*levels4)(const float* group, const float* clips, int count, float gain, int8_t* levels,
                  uint16_t* scale);
  // One row of a weight as numbers, float32 or bfloat16.
  void (*values)(const GmtpWeight& w, int64_t row, void* out, int32_t format);
  void (*rms_norm)(const float* residual, const float* x, int64_t dim, const float* weight,
                   float eps, float scalar, float* out);
  void (*gelu_mul)(const float* gate, const float* up, int64_t width, float* out);
  void (*rotate)(float* x, int64_t dim, const float* angles);
  void (*softcap)(float* x, int64_t count, float cap);
  // Queries [begin, end) of one head of keys: query j is head j mod group of row j / group.
  void (*attention)(const GmtpAttention& a, int64_t kv_head, int64_t begin, int64_t end);
  void (*store)(const float* x, int64_t dim, void* row, float* scale, int32_t format);
  uint64_t (*read)(const void* memory, int64_t bytes);
};

// The best of this CPU first; null ends the list.
const Isa* const* available();
// The one in use.
const Isa& isa();

extern const Isa isa_generic;
#if defined(__x86_64__)
extern const Isa isa_avx2;
extern const Isa isa_avx512;
#elif defined(__aarch64__)
extern const Isa isa_dotprod;
#endif

}  // namespace gmtp
