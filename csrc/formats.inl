// Copyright 2026 The gemma_mtp_ros Authors
// SPDX-License-Identifier: Apache-2.0

// From numbers to formats and back: activations, weights, rows of a weight.

// To the nearest integer, ties to even: adding 1.5 * 2^23 leaves it in the low bits.
constexpr float ROUND = 12582912.0f;
// Groups below it count as zeros: 127 / x would overflow.
constexpr float TINY = 1e-30f;

typedef int8_t Narrow __attribute__((vector_size(W)));

void quantise(const float* x, int64_t in, float gain, int32_t format, int slot, int slots,
              const QuantisedRows& out) {
  const int32_t offset = format == GMTP_INT8 ? OFFSET8 : OFFSET4;
  const int64_t blocks = blocks_of(in);
  for (int64_t g = 0; g < blocks * LANES; ++g) {
    const int64_t count = std::clamp<int64_t>(in - g * GROUP, 0, GROUP);
    float part[GROUP] = {};
    if (0 < count && count < GROUP) {
      std::memcpy(part, x + g * GROUP, static_cast<size_t>(count) * sizeof(float));
    }
    const float* group = count == GROUP ? x + g * GROUP : part;
    V top = set1(0);
    UNROLL for (int i = 0; i < GROUP; i += W) {
      top = max(top, max(load(group + i), -load(group + i)));
    }
    const float largest = reduce_max(top);
    const float inverse = largest > TINY ? 127.0f / largest : 0.0f;
    VI sums = set1i(0);
    int8_t q[GROUP];
    UNROLL for (int i = 0; i < GROUP; i += W) {
      const VI level = (VI)(load(group + i) * set1(inverse) + set1(ROUND)) - set1i(0x4b400000);
      const Narrow bytes = __builtin_convertvector(level, Narrow);
      std::memcpy(q + i, &bytes, sizeof bytes);
      sums += level;
    }
    const auto sum = static_cast<int32_t>(reduce_add(to_float(sums)));  // exact: below 2^24
    const int64_t at = (g / LANES * slots + slot) * LANES, lane = g % LANES;
    int8_t* values = out.values + (at * STEPS + lane) * 4;
    for (int s = 0; s < STEPS; ++s) std::memcpy(values + s * LANES * 4, q + 4 * s, 4);
    out.scales[at + lane] = largest > TINY ? largest / 127.0f * gain : 0.0f;
    out.starts[at + lane] = -offset * sum;
  }
}

// To the nearest half, ties to even; beyond its range the largest.
inline uint16_t to_half(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000;
  const float magnitude = std::min(std::fabs(v), 65504.0f);
  if (magnitude < 0x1p-14f) {  // a subnormal: multiples of 2^-24
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(magnitude * 0x1p24f)));
  }
  std::memcpy(&bits, &magnitude, sizeof bits);
  bits += 0xfff + ((bits >> 13) & 1);
  return static_cast<uint16_t>(sign | ((bits >> 13) - (112u << 10)));
}

inline float from_half(uint16_t h) {
  float lanes[W];
  store(lanes, load_half(&h, 1));
  return lanes[0];
}

// The nearest of the levels -8 .. 7, as numbers.
inline V level4(V x) {
  const V rounded = (x + set1(ROUND)) - set1(ROUND);
  return min(max(rounded, set1(-8.0f)), set1(7.0f));
}

void levels4(const float* group, const float* clips, int count, float gain, int8_t* levels,
             uint16_t* scale) {
  float peak = 0;
  for (int i = 0; i < GROUP; ++i) {
    if (std::fabs(group[i]) > std::fabs(peak)) peak = group[i];
  }
  float best = std::numeric_limits<float>::infinity();
  for (int c = 0; c < count; ++c) {
    const float first = peak != 0 ? clips[c] / peak : 0.0f;
    V products = set1(0), squares = set1(0);
    UNROLL for (int i = 0; i < GROUP; i += W) {
      const V x = load(group + i);
      const V q = level4(min(max(x * set1(first), set1(-16.0f)), set1(16.0f)));
      products = fma(x, q, products);
      squares = fma(q, q, squares);
    }
    const float square = reduce_add(squares);
    const uint16_t h = to_half(square > 0 ? reduce_add(products) / square / gain : 0.0f);
    const float d = from_half(h) * gain;
    const float inverse = d != 0 ? 1.0f / d : 0.0f;
    V errors = set1(0);
    int8_t found[GROUP];
    UNROLL for (int i = 0; i < GROUP; i += W) {
      const V x = load(group + i);
      const V q = level4(min(max(x * set1(inverse), set1(-16.0f)), set1(16.0f)));
      const V error = fma(q, set1(-d), x);
      errors = fma(error, error, errors);
      const Narrow bytes = __builtin_convertvector(__builtin_convertvector(q, VI), Narrow);
      std::memcpy(found + i, &bytes, sizeof bytes);
    }
    const float error = reduce_add(errors);
    if (error < best) {
      best = error;
      *scale = h;
      std::memcpy(levels, found, sizeof found);
    }
  }
}

// To the nearest bfloat16, ties to even; NaN stays NaN.
inline uint16_t to_bfloat16(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  return static_cast<uint16_t>(nan ? 0x7fc0 : rounded);
}

inline void put(float* out, float v) { *out = v; }
inline void put(uint16_t* out, float v) { *out = to_bfloat16(v); }

inline float one(const float* p) { return *p; }
inline float one(const uint16_t* p) {
  const uint32_t bits = static_cast<uint32_t>(*p) << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

template <class Out>
void group_values(const uint8_t* p, int64_t step, int format, float scale, Out* out) {
  if (format == GMTP_INT8) {
    for (int s = 0; s < STEPS; ++s) {
      for (int i = 0; i < 4; ++i) put(out + 4 * s + i, scale * (p[s * step + i] - 128));
    }
    return;
  }
  for (int s = 0; s < STEPS; s += 2) {
    for (int i = 0; i < 4; ++i) {
      const int both = p[s / 2 * step + i];
      put(out + 4 * s + i, scale * ((both & 15) - 8));
      put(out + 4 * s + 4 + i, scale * ((both >> 4) - 8));
    }
  }
}

template <class Out>
void row_values(const GmtpWeight& w, int64_t row, Out* out) {
  const uint8_t* data = static_cast<const uint8_t*>(w.data) + row * w.stride;
  if (w.format == GMTP_FLOAT32) {
    for (int64_t k = 0; k < w.in; ++k) put(out + k, one(reinterpret_cast<const float*>(data) + k));
    return;
  }
  if (w.format == GMTP_BFLOAT16) {
    const auto* values = reinterpret_cast<const uint16_t*>(data);
    for (int64_t k = 0; k < w.in; ++k) put(out + k, one(values + k));
    return;
  }
  const int64_t groups = groups_of(w.in);
  const int64_t loads = w.format == GMTP_INT8 ? STEPS : STEPS / 2;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t block = g / LANES, lane = g % LANES;
    const int64_t step = std::min<int64_t>(LANES, groups - block * LANES) * 4;
    const uint8_t* p = data + block * loads * LANES * 4 + lane * 4;
    float scale[W];
    store(scale, load_half(w.scales + row * w.scale_stride + g, 1));
    if ((g + 1) * GROUP <= w.in) {
      group_values(p, step, w.format, scale[0] * w.gain, out + g * GROUP);
    } else {
      Out part[GROUP];
      group_values(p, step, w.format, scale[0] * w.gain, part);
      std::copy_n(part, w.in - g * GROUP, out + g * GROUP);
    }
  }
}

void values(const GmtpWeight& w, int64_t row, void* out, int32_t format) {
  if (format == GMTP_FLOAT32) {
    row_values(w, row, static_cast<float*>(out));
  } else {
    row_values(w, row, static_cast<uint16_t*>(out));
  }
}
