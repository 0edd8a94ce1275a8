// Copyright 2026 The gemma_mtp_ros Authors
// SPDX-License-Identifier: Apache-2.0

// Norms, activations, rotary embedding.

// e^x within 2 ulp; 1e-38 below -87. Range reduction and coefficients: Cephes expf.
inline V exponential(V x) {
  x = min(max(x, set1(-87.0f)), set1(88.0f));
  const V shift = set1(12582912.0f);
  const V shifted = fma(x, set1(1.44269504088896341f), shift);
  const V k = shifted - shift;
  x = fma(k, set1(-0.693359375f), x);
  x = fma(k, set1(2.12194440e-4f), x);
  V p = set1(1.9875691500e-4f);
  p = fma(p, x, set1(1.3981999507e-3f));
  p = fma(p, x, set1(8.3334519073e-3f));
  p = fma(p, x, set1(4.1665795894e-2f));
  p = fma(p, x, set1(1.6666665459e-1f));
  p = fma(p, x, set1(5.0000001201e-1f));
  p = fma(p, x * x, x) + set1(1.0f);
  return (V)((VI)p + (((VI)shifted - set1i(0x4b400000)) << 23));
}

// tanh within a few ulp. Polynomial for small arguments: Cephes tanhf.
inline V hyperbolic_tangent(V x) {
  const VI sign = (VI)x & set1i(INT32_MIN);
  const V a = (V)((VI)x & set1i(INT32_MAX));
  const V large = set1(1.0f) - set1(2.0f) / (exponential(a + a) + set1(1.0f));
  const V z = x * x;
  V p = set1(-5.70498872745e-3f);
  p = fma(p, z, set1(2.06390887954e-2f));
  p = fma(p, z, set1(-5.37397155531e-2f));
  p = fma(p, z, set1(1.33314422036e-1f));
  p = fma(p, z, set1(-3.33332819422e-1f));
  const V small = fma(p * z, a, a);
  const VI take = (VI)(a < set1(0.625f));
  return (V)((((VI)small & take) | ((VI)large & ~take)) | sign);
}

// gelu with the tanh approximation: x / (1 + e^(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
inline V gelu(V x) {
  const V inner = fma(x * x, set1(0.044715f), set1(1.0f)) * x;
  return x / (set1(1.0f) + exponential(inner * set1(-1.5957691216057308f)));
}

template <class Vector, class Rest>
inline void each(int64_t count, Vector vector, Rest rest) {
  const int64_t whole = count & -static_cast<int64_t>(W);
  for (int64_t i = 0; i < whole; i += W) vector(i);
  if (whole < count) rest(whole, static_cast<size_t>(count - whole) * sizeof(float));
}

inline V load_part(const float* p, size_t bytes) {
  float part[W] = {};
  std::memcpy(part, p, bytes);
  return load(part);
}

inline void store_part(float* p, V v, size_t bytes) {
  float part[W];
  store(part, v);
  std::memcpy(p, part, bytes);
}

void rms_norm(const float* residual, const float* x, int64_t dim, const float* weight, float eps,
              float scalar, float* out) {
  V squares[4] = {set1(0), set1(0), set1(0), set1(0)};
  int64_t k = 0;
  for (; k + 4 * W <= dim; k += 4 * W) {
    UNROLL for (int u = 0; u < 4; ++u) {
      const V v = load(x + k + u * W);
      squares[u] = fma(v, v, squares[u]);
    }
  }
  each(
      dim - k, [&](int64_t i) { squares[0] = fma(load(x + k + i), load(x + k + i), squares[0]); },
      [&](int64_t i, size_t bytes) {
        const V v = load_part(x + k + i, bytes);
        squares[1] = fma(v, v, squares[1]);
      });
  const float sum = reduce_add((squares[0] + squares[1]) + (squares[2] + squares[3]));
  const V scale = set1(1.0f / std::sqrt(sum / static_cast<float>(dim) + eps));
  const auto finish = [&](V v, V w, V r) {
    v = v * scale * w;
    return residual ? (r + v) * set1(scalar) : v;
  };
  each(
      dim,
      [&](int64_t i) {
        store(out + i, finish(load(x + i), weight ? load(weight + i) : set1(1),
                              residual ? load(residual + i) : set1(0)));
      },
      [&](int64_t i, size_t bytes) {
        const V w = weight ? load_part(weight + i, bytes) : set1(1);
        const V r = residual ? load_part(residual + i, bytes) : set1(0);
        store_part(out + i, finish(load_part(x + i, bytes), w, r), bytes);
      });
}

void gelu_mul(const float* gate, const float* up, int64_t width, float* out) {
  each(
      width, [&](int64_t i) { store(out + i, gelu(load(gate + i)) * load(up + i)); },
      [&](int64_t i, size_t bytes) {
        const V v = gelu(load_part(gate + i, bytes)) * load_part(up + i, bytes);
        store_part(out + i, v, bytes);
      });
}

void softcap(float* x, int64_t count, float cap) {
  const V c = set1(cap);
  each(
      count, [&](int64_t i) { store(x + i, hyperbolic_tangent(load(x + i) / c) * c); },
      [&](int64_t i, size_t bytes) {
        store_part(x + i, hyperbolic_tangent(load_part(x + i, bytes) / c) * c, bytes);
      });
}

void rotate(float* x, int64_t dim, const float* angles) {
  for (int64_t i = 0; i + 1 < dim; i += 2) {
    const float a = x[i], b = x[i + 1], c = angles[i], s = angles[i + 1];
    x[i] = a * c - b * s;
    x[i + 1] = a * s + b * c;
  }
}

uint64_t read(const void* memory, int64_t bytes) {
  typedef uint64_t Word __attribute__((vector_size(4 * W)));
  const char* p = static_cast<const char*>(memory);
  Word sums[4] = {};
  for (int64_t i = 0; i + 16 * W <= bytes; i += 16 * W) {
    UNROLL for (int u = 0; u < 4; ++u) {
      Word word;
      std::memcpy(&word, p + i + u * 4 * W, sizeof word);
      sums[u] ^= word;
    }
    __builtin_prefetch(p + i + 4096);
  }
  const Word all = (sums[0] ^ sums[1]) ^ (sums[2] ^ sums[3]);
  uint64_t result = 0;
  for (size_t i = 0; i < sizeof all / sizeof(uint64_t); ++i) result ^= all[i];
  return result;
}
