// Copyright 2026 The gemma_mtp_ros Authors
// SPDX-License-Identifier: Apache-2.0

// Products of up to MAX_ROWS rows in one pass over the weights.
//
// The sum of an output and a row runs over `in` in one chain of vectors whatever the tile, so its
// bits do not depend on how many rows or outputs a tile holds.

// Outputs of a tile: as registers allow, and whole fours, which are added up together.
constexpr int whole_fours(int outputs) {
  return outputs >= 8 ? 8 : outputs >= 4 ? 4 : std::max(outputs, 1);
}

template <int N>
constexpr int float_tile() {
  return whole_fours((REGISTERS - 2) / (N + 1));
}

template <int N>
constexpr int int_tile() {
  return whole_fours(std::min(REGISTERS / 2 / N, REGISTERS / 4));
}

template <int N, int R>
inline void put_sums(const V (*sum)[N], const Rows& rows, int64_t o) {
  UNROLL for (int n = 0; n < N; ++n) {
    if (R == 1) {
      rows.y[n][o] = reduce_add(sum[0][n]);
      continue;
    }
    UNROLL for (int r = 0; r < R; r += 4) {
      const V none = set1(0);
      const auto four = reduce_four(sum[r][n], r + 1 < R ? sum[std::min(r + 1, R - 1)][n] : none,
                                    r + 2 < R ? sum[std::min(r + 2, R - 1)][n] : none,
                                    r + 3 < R ? sum[std::min(r + 3, R - 1)][n] : none);
      std::memcpy(rows.y[n] + o + r, &four, sizeof(float) * std::min(4, R - r));
    }
  }
}

inline const uint8_t* weight_row(const GmtpWeight& w, const Rows& rows, int64_t o) {
  const int64_t row = rows.ids ? rows.ids[o] : rows.first + o;
  return static_cast<const uint8_t*>(w.data) + row * w.stride;
}

inline const uint16_t* scale_row(const GmtpWeight& w, const Rows& rows, int64_t o) {
  const int64_t row = rows.ids ? rows.ids[o] : rows.first + o;
  return w.scales + row * w.scale_stride;
}

// A vector of activations, kept in a register when several outputs use it.
template <int R>
inline Bytes load_x(const int8_t* p) {
  Bytes v = load_signed(p);
  if (R > 1) keep(v);
  return v;
}

struct Float32 {
  using Value = float;
  static constexpr bool PREFETCH = false;  // rows are long enough for the hardware to follow
  static V get(const float* p) { return load(p); }
};

struct Bfloat16 {
  using Value = uint16_t;
  static constexpr bool PREFETCH = true;
  static V get(const uint16_t* p) { return load_bf16(p); }
};

template <class Format, int N, int R>
void float_outputs(const GmtpWeight& w, const Rows& rows, int64_t o) {
  using Value = typename Format::Value;
  const Value* row[R];
  for (int r = 0; r < R; ++r) {
    row[r] = reinterpret_cast<const Value*>(weight_row(w, rows, o + r));
  }
  // The next tile's rows lie behind this one's; a prefetch past the end of memory does no harm.
  const int64_t ahead = R * w.stride / static_cast<int64_t>(sizeof(Value));
  V sum[R][N];
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int n = 0; n < N; ++n) sum[r][n] = set1(0);
  }
  const int64_t whole = w.in & -static_cast<int64_t>(W);
  for (int64_t k = 0; k < whole; k += W) {
    V v[R];
    UNROLL for (int r = 0; r < R; ++r) {
      v[r] = Format::get(row[r] + k);
      if (Format::PREFETCH && k * sizeof(Value) % 64 == 0) {
        __builtin_prefetch(row[r] + k + ahead);
      }
    }
    UNROLL for (int n = 0; n < N; ++n) {
      V x = load(rows.x[n] + k);
      if (R > 1) keep(x);
      UNROLL for (int r = 0; r < R; ++r) sum[r][n] = fma(v[r], x, sum[r][n]);
    }
  }
  if (whole < w.in) {
    for (int r = 0; r < R; ++r) {
      Value rest[W] = {};
      std::memcpy(rest, row[r] + whole, static_cast<size_t>(w.in - whole) * sizeof(Value));
      const V v = Format::get(rest);
      for (int n = 0; n < N; ++n) sum[r][n] = fma(v, load(rows.x[n] + whole), sum[r][n]);
    }
  }
  put_sums<N, R>(sum, rows, o);
}

struct Int8 {
  static constexpr int LOADS = STEPS;  // loads of 4 bytes a lane in a block
  template <int N, int R>
  static void add(VI (*sum)[N], const Bytes* b, int s, const int8_t* x) {
    Bytes w[R];
    UNROLL for (int r = 0; r < R; ++r) w[r] = prepare8(b[r]);
    UNROLL for (int n = 0; n < N; ++n) {
      const Bytes v = load_x<R>(x + (n * STEPS + s) * LANES * 4);
      UNROLL for (int r = 0; r < R; ++r) sum[r][n] = dot8(sum[r][n], w[r], v);
    }
  }
};

struct Int4 {
  static constexpr int LOADS = STEPS / 2;
  template <int N, int R>
  static void add(VI (*sum)[N], const Bytes* b, int s, const int8_t* x) {
    Bytes low[R], high[R];
    UNROLL for (int r = 0; r < R; ++r) {
      low[r] = low4(b[r]);
      high[r] = high4(b[r]);
    }
    UNROLL for (int n = 0; n < N; ++n) {
      const Bytes even = load_x<R>(x + (n * STEPS + 2 * s) * LANES * 4);
      UNROLL for (int r = 0; r < R; ++r) sum[r][n] = dot4(sum[r][n], low[r], even);
      const Bytes odd = load_x<R>(x + (n * STEPS + 2 * s + 1) * LANES * 4);
      UNROLL for (int r = 0; r < R; ++r) sum[r][n] = dot4(sum[r][n], high[r], odd);
    }
  }
};

// One vector of lanes of one block: `lanes` of W count, and a step's bytes are `step` apart.
template <class Format, int N, int R>
inline void int_lanes(const uint8_t* const* row, const uint16_t* const* scale, int lanes,
                      int64_t step, const int8_t* x, const float* x_scale, const int32_t* start,
                      int64_t ahead, V (*total)[N]) {
  VI sum[R][N];
  UNROLL for (int n = 0; n < N; ++n) {
    UNROLL for (int r = 0; r < R; ++r) sum[r][n] = loadi(start + n * LANES);
  }
  UNROLL for (int s = 0; s < Format::LOADS; ++s) {
    Bytes b[R];
    UNROLL for (int r = 0; r < R; ++r) {
      b[r] = load_bytes(row[r] + s * step, lanes);
      __builtin_prefetch(row[r] + s * step + ahead);
    }
    Format::template add<N, R>(sum, b, s, x);
  }
  V scales[R];
  UNROLL for (int r = 0; r < R; ++r) scales[r] = load_half(scale[r], lanes);
  UNROLL for (int n = 0; n < N; ++n) {
    const V own = load(x_scale + n * LANES);
    UNROLL for (int r = 0; r < R; ++r) {
      total[r][n] = fma(to_float(sum[r][n]), scales[r] * own, total[r][n]);
    }
  }
}

template <class Format, int N, int R>
void int_outputs(const GmtpWeight& w, const Rows& rows, int64_t o) {
  const uint8_t* bytes[R];
  const uint16_t* scales[R];
  for (int r = 0; r < R; ++r) {
    bytes[r] = weight_row(w, rows, o + r);
    scales[r] = scale_row(w, rows, o + r);
  }
  const int64_t ahead = R * w.stride;
  V total[R][N];
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int n = 0; n < N; ++n) total[r][n] = set1(0);
  }
  const int8_t* x = rows.q.values;
  const float* x_scale = rows.q.scales;
  const int32_t* start = rows.q.starts;
  int64_t groups = groups_of(w.in);
  for (; groups >= LANES; groups -= LANES) {
    for (int lane = 0; lane < LANES; lane += W) {
      int_lanes<Format, N, R>(bytes, scales, W, LANES * 4, x + lane * 4, x_scale + lane,
                              start + lane, ahead, total);
      UNROLL for (int r = 0; r < R; ++r) {
        bytes[r] += W * 4;
        scales[r] += W;
      }
    }
    UNROLL for (int r = 0; r < R; ++r) bytes[r] += (Format::LOADS - 1) * LANES * 4;
    x += N * BLOCK_VALUES;
    x_scale += N * LANES;
    start += N * LANES;
  }
  for (int64_t lane = 0; lane < groups; lane += W) {
    const int lanes = static_cast<int>(std::min<int64_t>(W, groups - lane));
    int_lanes<Format, N, R>(bytes, scales, lanes, groups * 4, x + lane * 4, x_scale + lane,
                            start + lane, ahead, total);
    UNROLL for (int r = 0; r < R; ++r) {
      bytes[r] += W * 4;
      scales[r] += W;
    }
  }
  put_sums<N, R>(total, rows, o);
}

template <class Format, int N>
void float_range(const GmtpWeight& w, const Rows& rows, int64_t begin, int64_t end) {
  constexpr int R = float_tile<N>();
  int64_t o = begin;
  for (; o + R <= end; o += R) float_outputs<Format, N, R>(w, rows, o);
  for (; o < end; ++o) float_outputs<Format, N, 1>(w, rows, o);
}

template <class Format, int N>
void int_range(const GmtpWeight& w, const Rows& rows, int64_t begin, int64_t end) {
  constexpr int R = int_tile<N>();
  int64_t o = begin;
  for (; o + R <= end; o += R) int_outputs<Format, N, R>(w, rows, o);
  for (; o < end; ++o) int_outputs<Format, N, 1>(w, rows, o);
}

template <int N>
void range(const GmtpWeight& w, const Rows& rows, int64_t begin, int64_t end) {
  switch (w.format) {
    case GMTP_FLOAT32: return float_range<Float32, N>(w, rows, begin, end);
    case GMTP_BFLOAT16: return float_range<Bfloat16, N>(w, rows, begin, end);
    case GMTP_INT8: return int_range<Int8, N>(w, rows, begin, end);
    case GMTP_INT4: return int_range<Int4, N>(w, rows, begin, end);
  }
}

void product(const GmtpWeight& w, const Rows& rows, int64_t begin, int64_t end) {
  switch (rows.n) {
    case 1: return range<1>(w, rows, begin, end);
    case 2: return range<2>(w, rows, begin, end);
    case 3: return range<3>(w, rows, begin, end);
    case 4: return range<4>(w, rows, begin, end);
    case 5: return range<5>(w, rows, begin, end);
    case 6: return range<6>(w, rows, begin, end);
    case 7: return range<7>(w, rows, begin, end);
    case 8: return range<8>(w, rows, begin, end);
  }
}
