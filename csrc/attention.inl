// Copyright 2026 The gemma_mtp_ros Authors
// SPDX-License-Identifier: Apache-2.0

// Attention of a decoding pass, and the writing of its keys and values.
//
// A query takes the positions it sees in blocks of KEYS that begin at multiples of KEYS, so the
// order of its sums depends on its own position alone. Queries of one tile share the loads of
// keys and values; each has the arithmetic that it would have alone.

constexpr int KEYS = 64;

struct Float32Keys {
  using Value = float;
  static V get(const float* p) { return load(p); }
  static float one(float v) { return v; }
};

struct Bfloat16Keys {
  using Value = uint16_t;
  static V get(const uint16_t* p) { return load_bf16(p); }
  static float one(uint16_t v) {
    const uint32_t bits = static_cast<uint32_t>(v) << 16;
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
  }
};

struct Int8Keys {
  using Value = int8_t;
  static V get(const int8_t* p) { return load_i8(p); }
  static float one(int8_t v) { return static_cast<float>(v); }
};

struct Query {
  const float* q;
  float* out;
  int64_t low, high;  // positions seen: [low, high)
  float top, total;
  float weights[KEYS];  // scores, then weights, of the block's positions
};

template <class Keys>
struct Head {
  const typename Keys::Value* k;
  const typename Keys::Value* v;
  const float* k_scales;
  const float* v_scales;
  int64_t dim, ring;
  int64_t row(int64_t position) const { return ring ? position % ring : position; }
};

// Scores of positions [low, high), within one block, for Q queries.
template <class Keys, int Q>
void scores(const Head<Keys>& head, Query* const* queries, int64_t low, int64_t high) {
  const int64_t whole = head.dim & -static_cast<int64_t>(W);
  int64_t row = head.row(low);
  for (int64_t p = low; p < high; ++p) {
    const auto* k = head.k + row * head.dim;
    V even[Q], odd[Q];
    UNROLL for (int i = 0; i < Q; ++i) even[i] = odd[i] = set1(0);
    int64_t d = 0;
    for (; d + 2 * W <= whole; d += 2 * W) {
      const V a = Keys::get(k + d), b = Keys::get(k + d + W);
      UNROLL for (int i = 0; i < Q; ++i) {
        even[i] = fma(load(queries[i]->q + d), a, even[i]);
        odd[i] = fma(load(queries[i]->q + d + W), b, odd[i]);
      }
    }
    if (d < whole) {
      const V a = Keys::get(k + d);
      UNROLL for (int i = 0; i < Q; ++i) even[i] = fma(load(queries[i]->q + d), a, even[i]);
    }
    float sums[4];
    if (Q == 4) {
      const auto four = reduce_four(even[0] + odd[0], even[1 % Q] + odd[1 % Q],
                                    even[2 % Q] + odd[2 % Q], even[3 % Q] + odd[3 % Q]);
      std::memcpy(sums, &four, sizeof sums);
    } else {
      UNROLL for (int i = 0; i < Q; ++i) sums[i] = reduce_add(even[i] + odd[i]);
    }
    UNROLL for (int i = 0; i < Q; ++i) {
      float score = sums[i];
      for (int64_t rest = whole; rest < head.dim; ++rest) {
        score += queries[i]->q[rest] * Keys::one(k[rest]);
      }
      if (head.k_scales) score *= head.k_scales[row];
      queries[i]->weights[p % KEYS] = score;
    }
    if (++row == head.ring) row = 0;
  }
}

// Adds the weighted values of positions [low, high) to values d .. d + C * W of the sums.
template <class Keys, int Q, int C>
void mix_columns(const Head<Keys>& head, Query* const* queries, int64_t low, int64_t high,
                 int64_t d) {
  V sum[Q][C];
  UNROLL for (int i = 0; i < Q; ++i) {
    UNROLL for (int c = 0; c < C; ++c) sum[i][c] = load(queries[i]->out + d + c * W);
  }
  int64_t row = head.row(low);
  for (int64_t p = low; p < high; ++p) {
    const auto* v = head.v + row * head.dim + d;
    V value[C];
    UNROLL for (int c = 0; c < C; ++c) value[c] = Keys::get(v + c * W);
    UNROLL for (int i = 0; i < Q; ++i) {
      const V weight = set1(queries[i]->weights[p % KEYS]);
      UNROLL for (int c = 0; c < C; ++c) sum[i][c] = fma(weight, value[c], sum[i][c]);
    }
    if (++row == head.ring) row = 0;
  }
  UNROLL for (int i = 0; i < Q; ++i) {
    UNROLL for (int c = 0; c < C; ++c) store(queries[i]->out + d + c * W, sum[i][c]);
  }
}

template <class Keys, int Q>
void mix(const Head<Keys>& head, Query* const* queries, int64_t low, int64_t high) {
  int64_t d = 0;
  for (; d + 4 * W <= head.dim; d += 4 * W) {
    mix_columns<Keys, Q, 4>(head, queries, low, high, d);
  }
  for (; d + W <= head.dim; d += W) mix_columns<Keys, Q, 1>(head, queries, low, high, d);
  for (; d < head.dim; ++d) {
    for (int i = 0; i < Q; ++i) {
      int64_t row = head.row(low);
      for (int64_t p = low; p < high; ++p) {
        const float value = Keys::one(head.v[row * head.dim + d]);
        queries[i]->out[d] += queries[i]->weights[p % KEYS] * value;
        if (++row == head.ring) row = 0;
      }
    }
  }
}

// e^x, and 0 below -60: such a weight changes no sum, but its products would be subnormal and slow.
inline V weight_of(V x) {
  return (V)((VI)exponential(x) & (VI)(x > set1(-60.0f)));
}

// Turns a query's scores of [low, high) into weights and rescales what it has summed so far.
template <class Keys>
void weigh(const Head<Keys>& head, Query& query, int64_t low, int64_t high) {
  const float never = -std::numeric_limits<float>::infinity();
  const int begin = static_cast<int>(low % KEYS), end = begin + static_cast<int>(high - low);
  for (int i = 0; i < begin; ++i) query.weights[i] = never;
  for (int i = end; i < KEYS; ++i) query.weights[i] = never;
  V best = load(query.weights);
  for (int i = W; i < KEYS; i += W) best = max(best, load(query.weights + i));
  const float top = std::max(query.top, reduce_max(best));
  V sum = set1(0);
  for (int i = 0; i < KEYS; i += W) {
    store(query.weights + i, weight_of(load(query.weights + i) - set1(top)));
  }
  for (int i = 0; i < KEYS; i += W) sum = sum + load(query.weights + i);
  if (query.top == never) {
    query.total = reduce_add(sum);
  } else {
    float part[W];
    store(part, weight_of(set1(query.top - top)));
    const float shrink = query.top == top ? 1.0f : part[0];
    query.total = query.total * shrink + reduce_add(sum);
    if (shrink != 1.0f) {
      for (int64_t d = 0; d < head.dim; ++d) query.out[d] *= shrink;
    }
  }
  query.top = top;
  if (head.v_scales) {
    int64_t row = head.row(low);
    for (int i = begin; i < end; ++i) {
      query.weights[i] *= head.v_scales[row];
      if (++row == head.ring) row = 0;
    }
  }
}

template <class Keys, int Q>
void attend(const Head<Keys>& head, Query* queries) {
  int64_t first = queries[0].low, last = queries[0].high;
  for (int i = 1; i < Q; ++i) {
    first = std::min(first, queries[i].low);
    last = std::max(last, queries[i].high);
  }
  for (int64_t block = first - first % KEYS; block < last; block += KEYS) {
    int64_t low[Q], high[Q];
    int64_t begin = block, end = block + KEYS;  // what all queries see of this block
    Query* all[Q];
    for (int i = 0; i < Q; ++i) {
      all[i] = queries + i;
      low[i] = std::max(block, queries[i].low);
      high[i] = std::max(low[i], std::min(block + KEYS, queries[i].high));
      begin = std::max(begin, low[i]);
      end = std::min(end, high[i]);
    }
    const bool shared = begin < end;
    for (int i = 0; i < Q; ++i) {
      scores<Keys, 1>(head, all + i, low[i], shared ? begin : high[i]);
      if (shared) scores<Keys, 1>(head, all + i, end, high[i]);
    }
    if (shared) scores<Keys, Q>(head, all, begin, end);
    for (int i = 0; i < Q; ++i) {
      if (low[i] < high[i]) weigh(head, queries[i], low[i], high[i]);
      mix<Keys, 1>(head, all + i, low[i], shared ? begin : high[i]);
    }
    if (shared) mix<Keys, Q>(head, all, begin, end);
    for (int i = 0; shared && i < Q; ++i) mix<Keys, 1>(head, all + i, end, high[i]);
  }
  for (int i = 0; i < Q; ++i) {
    if (queries[i].total == 0) continue;  // sees nothing: zeros
    for (int64_t d = 0; d < head.dim; ++d) queries[i].out[d] /= queries[i].total;
  }
}

template <class Keys>
void attention_as(const GmtpAttention& a, int64_t kv_head, int64_t begin, int64_t end) {
  constexpr int TILE = 4;
  using Value = typename Keys::Value;
  Head<Keys> head;
  head.k = static_cast<const Value*>(a.k) + kv_head * a.head_stride;
  head.v = static_cast<const Value*>(a.v) + kv_head * a.head_stride;
  head.k_scales = a.k_scales ? a.k_scales + kv_head * a.scale_stride : nullptr;
  head.v_scales = a.v_scales ? a.v_scales + kv_head * a.scale_stride : nullptr;
  head.dim = a.dim;
  head.ring = a.ring;
  const int64_t group = a.q_heads / a.kv_heads;
  Query queries[TILE];
  for (int64_t j = begin; j < end;) {
    const int64_t tile = end - j >= TILE ? TILE : end - j >= 2 ? 2 : 1;
    for (int64_t i = 0; i < tile; ++i) {
      const int64_t row = (j + i) / group, q_head = kv_head * group + (j + i) % group;
      const int64_t position = a.position + row;
      Query& query = queries[i];
      query.q = a.q + row * a.q_stride + q_head * a.dim;
      query.out = a.out + (row * a.q_heads + q_head) * a.dim;
      query.low = a.window ? std::max<int64_t>(0, position - a.window + 1) : 0;
      query.high = std::max(query.low, position - a.first + 1);
      query.top = -std::numeric_limits<float>::infinity();
      query.total = 0;
      std::memset(query.out, 0, static_cast<size_t>(a.dim) * sizeof(float));
    }
    switch (tile) {
      case 1: attend<Keys, 1>(head, queries); break;
      case 2: attend<Keys, 2>(head, queries); break;
      default: attend<Keys, TILE>(head, queries);
    }
    j += tile;
  }
}

void attention(const GmtpAttention& a, int64_t kv_head, int64_t begin, int64_t end) {
  switch (a.format) {
    case GMTP_FLOAT32: return attention_as<Float32Keys>(a, kv_head, begin, end);
    case GMTP_BFLOAT16: return attention_as<Bfloat16Keys>(a, kv_head, begin, end);
    default: return attention_as<Int8Keys>(a, kv_head, begin, end);
  }
}

void store_row(const float* x, int64_t dim, void* row, float* scale, int32_t format) {
  if (format == GMTP_FLOAT32) {
    std::memcpy(row, x, static_cast<size_t>(dim) * sizeof(float));
  } else if (format == GMTP_BFLOAT16) {
    auto* out = static_cast<uint16_t*>(row);
    for (int64_t i = 0; i < dim; ++i) out[i] = to_bfloat16(x[i]);
  } else {
    auto* out = static_cast<int8_t*>(row);
    float largest = 0;
    for (int64_t i = 0; i < dim; ++i) {
      const float magnitude = x[i] < 0 ? -x[i] : x[i];
      largest = magnitude > largest ? magnitude : largest;
    }
    const float inverse = largest > TINY ? 127.0f / largest : 0.0f;
    for (int64_t i = 0; i < dim; ++i) {
      const float shifted = x[i] * inverse + ROUND;
      int32_t bits;
      std::memcpy(&bits, &shifted, sizeof bits);
      out[i] = static_cast<int8_t>(bits - 0x4b400000);
    }
    *scale = largest > TINY ? largest / 127.0f : 0.0f;
  }
}
