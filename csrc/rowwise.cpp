// Copyright 2026 The gemma_mtp_ros Authors
// SPDX-License-Identifier: Apache-2.0

// All that is not a product: norms, activations, rotary embedding, attention.

#include <algorithm>
#include <atomic>

#include "isa.h"
#include "pool.h"

namespace gmtp {
namespace {

struct Elementwise {
  const Isa* set;
  const float* a;
  const float* b;
  const float* weight;
  float* out;
  int64_t dim, a_stride, b_stride, weight_rows, heads;
  float eps, scalar;
};

int64_t row_grain(int64_t dim) { return std::max<int64_t>(1, 16 * 1024 / std::max<int64_t>(1, dim)); }

}  // namespace
}  // namespace gmtp

using namespace gmtp;

void gmtp_rms_norm(const float* x, int64_t rows, int64_t dim, const float* weight,
                   int64_t weight_rows, float eps, float* out) {
  Elementwise job{};
  job.set = &isa();
  job.a = x;
  job.weight = weight;
  job.weight_rows = std::max<int64_t>(1, weight_rows);
  job.dim = dim;
  job.eps = eps;
  job.out = out;
  parallel_for(
      rows, row_grain(dim),
      [](const void* context, int64_t begin, int64_t end) {
        const auto& e = *static_cast<const Elementwise*>(context);
        for (int64_t r = begin; r < end; ++r) {
          const float* weight = e.weight ? e.weight + r % e.weight_rows * e.dim : nullptr;
          e.set->rms_norm(nullptr, e.a + r * e.dim, e.dim, weight, e.eps, 1.0f,
                          e.out + r * e.dim);
        }
      },
      &job);
}

void gmtp_add_rms_norm(const float* residual, const float* x, int64_t rows, int64_t dim,
                       const float* weight, float eps, float scalar, float* out) {
  Elementwise job{};
  job.set = &isa();
  job.a = x;
  job.b = residual;
  job.weight = weight;
  job.dim = dim;
  job.eps = eps;
  job.scalar = scalar;
  job.out = out;
  parallel_for(
      rows, row_grain(dim),
      [](const void* context, int64_t begin, int64_t end) {
        const auto& e = *static_cast<const Elementwise*>(context);
        for (int64_t r = begin; r < end; ++r) {
          e.set->rms_norm(e.b + r * e.dim, e.a + r * e.dim, e.dim, e.weight, e.eps, e.scalar,
                          e.out + r * e.dim);
        }
      },
      &job);
}

void gmtp_gelu_mul(const float* gate, int64_t gate_stride, const float* up, int64_t up_stride,
                   int64_t rows, int64_t width, float* out) {
  Elementwise job{};
  job.set = &isa();
  job.a = gate;
  job.b = up;
  job.a_stride = gate_stride;
  job.b_stride = up_stride;
  job.dim = width;
  job.out = out;
  parallel_for(
      rows, row_grain(width),
      [](const void* context, int64_t begin, int64_t end) {
        const auto& e = *static_cast<const Elementwise*>(context);
        for (int64_t r = begin; r < end; ++r) {
          e.set->gelu_mul(e.a + r * e.a_stride, e.b + r * e.b_stride, e.dim, e.out + r * e.dim);
        }
      },
      &job);
}

void gmtp_rotate(float* x, int64_t rows, int64_t heads, int64_t dim, int64_t stride,
                 const float* angles) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      isa().rotate(x + r * stride + h * dim, dim, angles + r * dim);
    }
  }
}

void gmtp_softcap(float* x, int64_t count, float cap) {
  Elementwise job{};
  job.set = &isa();
  job.out = x;
  job.eps = cap;
  parallel_for(
      count, 32 * 1024,
      [](const void* context, int64_t begin, int64_t end) {
        const auto& e = *static_cast<const Elementwise*>(context);
        e.set->softcap(e.out + begin, end - begin, e.eps);
      },
      &job);
}

void gmtp_attention(const GmtpAttention* a) {
  // A tile is four queries of one head of keys, or fewer when that leaves threads without work.
  const int64_t queries = static_cast<int64_t>(a->n) * (a->q_heads / a->kv_heads);
  int64_t tile = 4;
  while (tile > 1 && (queries + tile - 1) / tile * a->kv_heads < threads()) tile /= 2;
  const int64_t tiles = (queries + tile - 1) / tile;
  struct Job {
    const GmtpAttention* a;
    const Isa* set;
    int64_t queries, tile, tiles;
  } const job{a, &isa(), queries, tile, tiles};
  int64_t seen = a->position + a->n;
  if (a->window) seen = std::min(seen, a->window);
  const int64_t cost = std::max<int64_t>(1, seen * a->dim * tile);
  parallel_for(
      tiles * a->kv_heads, std::max<int64_t>(1, 64 * 1024 / cost),
      [](const void* context, int64_t begin, int64_t end) {
        const Job& j = *static_cast<const Job*>(context);
        for (int64_t i = begin; i < end; ++i) {
          const int64_t first = i % j.tiles * j.tile;
          j.set->attention(*j.a, i / j.tiles, first, std::min(j.queries, first + j.tile));
        }
      },
      &job);
}

void gmtp_store(const float* source, int64_t source_stride, int64_t n, int64_t heads, int64_t dim,
                void* cache, float* scales, int32_t format, int64_t head_stride,
                int64_t scale_stride, int64_t position, int64_t ring) {
  const int64_t size = format == GMTP_FLOAT32 ? 4 : format == GMTP_BFLOAT16 ? 2 : 1;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = ring ? (position + i) % ring : position + i;
    for (int64_t h = 0; h < heads; ++h) {
      char* out = static_cast<char*>(cache) + (h * head_stride + row * dim) * size;
      float* scale = scales ? scales + h * scale_stride + row : nullptr;
      isa().store(source + i * source_stride + h * dim, dim, out, scale, format);
    }
  }
}

uint64_t gmtp_read(const void* memory, int64_t bytes) {
  struct Job {
    const Isa* set;
    const char* memory;
    std::atomic<uint64_t>* result;
  };
  std::atomic<uint64_t> result{0};
  const Job job{&isa(), static_cast<const char*>(memory), &result};
  parallel_for(
      bytes, 1 << 20,
      [](const void* context, int64_t begin, int64_t end) {
        const Job& j = *static_cast<const Job*>(context);
        j.result->fetch_xor(j.set->read(j.memory + begin, end - begin));
      },
      &job);
  return result.load();
}
