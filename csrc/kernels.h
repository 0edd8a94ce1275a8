// Copyright 2026 The gemma_mtp_ros Authors
// SPDX-License-Identifier: Apache-2.0

// C interface of the CPU kernels. Plain pointers; no Python, no torch. All arrays are row-major.
//
// Row invariance: row i of a result has the same bits whatever the other rows of the call are,
// whatever their number, and whatever the number of threads: each of its sums runs in one order
// that the shape of the weights (or the positions seen) alone decides.

#pragma once

#include <cstdint>

#define GMTP_ABI 1

#pragma GCC visibility push(default)
extern "C" {

// Formats of weights and of keys and values.
enum GmtpFormat { GMTP_FLOAT32 = 0, GMTP_BFLOAT16 = 1, GMTP_INT8 = 2, GMTP_INT4 = 3 };

// A matrix (out, in) of weights. Quantised rows are laid out as quantised.h says.
struct GmtpWeight {
  const void* data;
  const uint16_t* scales;  // (out, groups) IEEE half, of quantised formats
  int64_t out;
  int64_t in;
  int64_t stride;        // bytes from one row to the next
  int64_t scale_stride;  // scales from one row to the next
  float gain;            // what every scale is to be multiplied by: a power of two
  int32_t format;
};

// One layer's attention over its cache. Row i stands at position + i and sees the positions from
// max(0, position + i - window + 1) (0 when window is 0) to position + i - first.
struct GmtpAttention {
  const float* q;  // (n, q_heads, dim), rows q_stride apart
  float* out;      // (n, q_heads, dim)
  const void* k;   // (kv_heads, rows, dim), heads head_stride values apart
  const void* v;
  const float* k_scales;  // (kv_heads, rows) of int8, heads scale_stride apart
  const float* v_scales;
  int64_t q_stride;
  int64_t head_stride;
  int64_t scale_stride;
  int64_t position;
  int64_t window;
  int64_t ring;  // a position lies in row (position mod ring); 0: in the row of its number
  int64_t first;
  int32_t n;
  int32_t q_heads;
  int32_t kv_heads;
  int32_t dim;
  int32_t format;
};

int32_t gmtp_abi(void);
const char* gmtp_isa(void);
// Selects an instruction set by name; 0 when this CPU or build has it not. For tests.
int32_t gmtp_select(const char* name);
// Threads of a call, the caller's among them. None are started for 1.
void gmtp_set_threads(int32_t threads);
int32_t gmtp_threads(void);

// y (n, out) = x (n, in) times the weight transposed.
void gmtp_product(const GmtpWeight* w, const float* x, int64_t n, float* y);
// y (n, count): the scores of the weight's rows ids alone.
void gmtp_take(const GmtpWeight* w, const float* x, int64_t n, const int64_t* ids, int64_t count,
               float* y);
// y (pairs, size): row p is x row p / repeat times rows [blocks[p] * size, + size) of the weight.
void gmtp_blocks(const GmtpWeight* w, const float* x, int64_t pairs, int64_t repeat,
                 const int64_t* blocks, int64_t size, float* y);

// Quantises groups of 32 values on q4_0's grid: levels (groups, 32) in -8 .. 7 and half scales (to
// be multiplied by gain) of the smallest squared error among those tried. Clips are the levels tried
// for a group's value of largest magnitude; each scale is then refined by least squares.
void gmtp_levels4(const float* x, int64_t groups, const float* clips, int32_t count, float gain,
                  int8_t* levels, uint16_t* scales);

// Rows ids[0 .. count - 1] of the weight (first .. first + count - 1 without ids) as numbers in
// float32 or bfloat16: out (count, in).
void gmtp_values(const GmtpWeight* w, const int64_t* ids, int64_t first, int64_t count, void* out,
                 int32_t format);

// out = x / rms(x) * weight; row r takes row r mod weight_rows of the weight (null: all ones).
void gmtp_rms_norm(const float* x, int64_t rows, int64_t dim, const float* weight,
                   int64_t weight_rows, float eps, float* out);
// out = (residual + x / rms(x) * weight) * scalar; out may be residual or x.
void gmtp_add_rms_norm(const float* residual, const float* x, int64_t rows, int64_t dim,
                       const float* weight, float eps, float scalar, float* out);
// out (rows, width) = gelu_tanh(gate) * up; rows of gate and up lie a stride of values apart.
void gmtp_gelu_mul(const float* gate, int64_t gate_stride, const float* up, int64_t up_stride,
                   int64_t rows, int64_t width, float* out);
// The first heads of each row of x (rows, >= heads, dim), in place: adjacent pairs as complex
// numbers times angles (rows, dim / 2) complex.
void gmtp_rotate(float* x, int64_t rows, int64_t heads, int64_t dim, int64_t stride,
                 const float* angles);
// x = cap * tanh(x / cap), in place.
void gmtp_softcap(float* x, int64_t count, float cap);

void gmtp_attention(const GmtpAttention* a);
// Writes source (n, heads, dim) into rows position .. position + n - 1 (mod ring) of a cache
// (heads, rows, dim); int8 gets a scale for each head and row, its largest magnitude / 127.
void gmtp_store(const float* source, int64_t source_stride, int64_t n, int64_t heads, int64_t dim,
                void* cache, float* scales, int32_t format, int64_t head_stride,
                int64_t scale_stride, int64_t position, int64_t ring);

// Reads bytes of memory with all threads and returns a value that depends on all of them.
uint64_t gmtp_read(const void* memory, int64_t bytes);
}
#pragma GCC visibility pop
