// Copyright 2026 The gemma_mtp_ros Authors
// SPDX-License-Identifier: Apache-2.0

// Products: rows are batched, brought into the kernels' form and multiplied on all threads.

#include <algorithm>
#include <vector>

#include "isa.h"
#include "pool.h"

namespace gmtp {
namespace {

// Bytes of work that a second thread is worth waking for.
constexpr int64_t GRAIN_BYTES = 64 * 1024;
// Weights that several batches of rows share while they lie in the cache.
constexpr int64_t CACHED_BYTES = 128 * 1024;

// Memory of one calling thread, kept from call to call.
struct Scratch {
  std::vector<float> x;
  std::vector<int8_t> values;
  std::vector<float> scales;
  std::vector<int32_t> starts;
};

struct Batch {  // rows that share weights
  Rows rows;
  int64_t outputs;
  int64_t source[MAX_ROWS];  // row of x of each slot
};

struct Product {
  const GmtpWeight* w;
  const Isa* set;
  const Batch* batches;
  int64_t count;
};

bool quantised(const GmtpWeight& w) { return w.format == GMTP_INT8 || w.format == GMTP_INT4; }

// Brings the rows of x that each batch names into the form that its kernel reads.
void prepare(const GmtpWeight& w, const float* x, std::vector<Batch>& batches) {
  static thread_local Scratch scratch;
  int64_t rows = 0;
  for (const Batch& batch : batches) rows += batch.rows.n;
  if (quantised(w)) {
    const int64_t width = blocks_of(w.in) * BLOCK_VALUES;
    const auto size = static_cast<size_t>(rows * width);
    if (scratch.values.size() < size) {
      scratch.values.resize(size);
      scratch.scales.resize(size / GROUP);
      scratch.starts.resize(size / GROUP);
    }
    QuantisedRows at{scratch.values.data(), scratch.scales.data(), scratch.starts.data()};
    for (Batch& batch : batches) {
      const int n = batch.rows.n;
      for (int slot = 0; slot < n; ++slot) {
        isa().quantise(x + batch.source[slot] * w.in, w.in, w.gain, w.format, slot, n, at);
      }
      batch.rows.q = at;
      at = {at.values + n * width, at.scales + n * width / GROUP, at.starts + n * width / GROUP};
    }
    return;
  }
  const int64_t width = (w.in + LANES - 1) / LANES * LANES;
  if (width != w.in) scratch.x.assign(static_cast<size_t>(rows * width), 0.0f);
  float* copy = scratch.x.data();
  for (Batch& batch : batches) {
    for (int slot = 0; slot < batch.rows.n; ++slot) {
      const float* source = x + batch.source[slot] * w.in;
      if (width != w.in) {
        std::copy_n(source, w.in, copy);
        source = copy;
        copy += width;
      }
      batch.rows.x[slot] = source;
    }
  }
}

// Batches of the same outputs: a piece of the weights serves all of them while it is cached.
void run_shared(const GmtpWeight& w, const std::vector<Batch>& batches) {
  const Product job{&w, &isa(), batches.data(), static_cast<int64_t>(batches.size())};
  const int64_t grain = std::max<int64_t>(1, GRAIN_BYTES / std::max<int64_t>(1, w.stride));
  parallel_for(
      batches[0].outputs, grain,
      [](const void* context, int64_t begin, int64_t end) {
        const Product& p = *static_cast<const Product*>(context);
        if (p.count == 1) return p.set->product(*p.w, p.batches[0].rows, begin, end);
        const int64_t step = std::max<int64_t>(8, CACHED_BYTES / p.w->stride);
        for (int64_t o = begin; o < end; o += step) {
          for (int64_t b = 0; b < p.count; ++b) {
            p.set->product(*p.w, p.batches[b].rows, o, std::min(end, o + step));
          }
        }
      },
      &job);
}

void multiply(const GmtpWeight& w, const float* x, int64_t n, const int64_t* ids, int64_t outputs,
              float* y) {
  if (n <= 0 || outputs <= 0) return;
  static thread_local std::vector<Batch> batches;
  batches.clear();
  for (int64_t i = 0; i < n; i += MAX_ROWS) {
    Batch batch{};
    batch.rows.n = static_cast<int>(std::min<int64_t>(MAX_ROWS, n - i));
    batch.rows.ids = ids;
    batch.outputs = outputs;
    for (int slot = 0; slot < batch.rows.n; ++slot) {
      batch.source[slot] = i + slot;
      batch.rows.y[slot] = y + (i + slot) * outputs;
    }
    batches.push_back(batch);
  }
  prepare(w, x, batches);
  run_shared(w, batches);
}

}  // namespace
}  // namespace gmtp

using namespace gmtp;

void gmtp_product(const GmtpWeight* w, const float* x, int64_t n, float* y) {
  multiply(*w, x, n, nullptr, w->out, y);
}

void gmtp_take(const GmtpWeight* w, const float* x, int64_t n, const int64_t* ids, int64_t count,
               float* y) {
  multiply(*w, x, n, ids, count, y);
}

void gmtp_blocks(const GmtpWeight* w, const float* x, int64_t pairs, int64_t repeat,
                 const int64_t* blocks, int64_t size, float* y) {
  if (pairs <= 0 || size <= 0) return;
  static thread_local std::vector<Batch> batches;
  batches.clear();
  for (int64_t p = 0; p < pairs; ++p) {
    const int64_t first = blocks[p] * size;
    auto batch = std::find_if(batches.begin(), batches.end(), [&](const Batch& b) {
      return b.rows.first == first && b.rows.n < MAX_ROWS;
    });
    if (batch == batches.end()) {
      Batch fresh{};
      fresh.rows.first = first;
      fresh.outputs = size;
      batches.push_back(fresh);
      batch = batches.end() - 1;
    }
    const int slot = batch->rows.n++;
    batch->source[slot] = p / repeat;
    batch->rows.y[slot] = y + p * size;
  }
  prepare(*w, x, batches);
  const Product job{w, &isa(), batches.data(), static_cast<int64_t>(batches.size())};
  const int64_t grain = std::max<int64_t>(1, GRAIN_BYTES / std::max<int64_t>(1, w->stride));
  parallel_for(
      size * job.count, grain,
      [](const void* context, int64_t begin, int64_t end) {
        const Product& p = *static_cast<const Product*>(context);
        const int64_t outputs = p.batches[0].outputs;
        while (begin < end) {
          const int64_t b = begin / outputs, o = begin % outputs;
          const int64_t stop = std::min(outputs, o + end - begin);
          p.set->product(*p.w, p.batches[b].rows, o, stop);
          begin += stop - o;
        }
      },
      &job);
}

void gmtp_values(const GmtpWeight* w, const int64_t* ids, int64_t first, int64_t count, void* out,
                 int32_t format) {
  struct Job {
    const GmtpWeight* w;
    const Isa* set;
    const int64_t* ids;
    int64_t first;
    char* out;
    int32_t format;
  } const job{w, &isa(), ids, first, static_cast<char*>(out), format};
  parallel_for(
      count, std::max<int64_t>(1, 16 * 1024 / std::max<int64_t>(1, w->in)),
      [](const void* context, int64_t begin, int64_t end) {
        const Job& j = *static_cast<const Job*>(context);
        const int64_t bytes = j.w->in * (j.format == GMTP_FLOAT32 ? 4 : 2);
        for (int64_t i = begin; i < end; ++i) {
          j.set->values(*j.w, j.ids ? j.ids[i] : j.first + i, j.out + i * bytes, j.format);
        }
      },
      &job);
}

void gmtp_levels4(const float* x, int64_t groups, const float* clips, int32_t count, float gain,
                  int8_t* levels, uint16_t* scales) {
  struct Job {
    const Isa* set;
    const float* x;
    const float* clips;
    int32_t count;
    float gain;
    int8_t* levels;
    uint16_t* scales;
  } const job{&isa(), x, clips, count, gain, levels, scales};
  parallel_for(
      groups, 256,
      [](const void* context, int64_t begin, int64_t end) {
        const Job& j = *static_cast<const Job*>(context);
        for (int64_t g = begin; g < end; ++g) {
          j.set->levels4(j.x + g * GROUP, j.clips, j.count, j.gain, j.levels + g * GROUP,
                         j.scales + g);
        }
      },
      &job);
}
