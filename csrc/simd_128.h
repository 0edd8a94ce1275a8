// Copyright 2026 The gemma_mtp_ros Authors
// SPDX-License-Identifier: Apache-2.0

// 128-bit vectors in the compilers' own vector types: baseline x86-64 and any Arm. Included inside
// the namespace of an instruction set; DOTPROD adds the Arm dot product.

constexpr int W = 4;
constexpr int REGISTERS = 16;

typedef float V __attribute__((vector_size(16)));
typedef int32_t VI __attribute__((vector_size(16)));
typedef uint16_t H4 __attribute__((vector_size(8)));
typedef int8_t B4 __attribute__((vector_size(4)));
typedef uint8_t U16 __attribute__((vector_size(16)));
typedef int8_t B16 __attribute__((vector_size(16)));

inline V set1(float x) { return V{x, x, x, x}; }
inline void keep(V&) {}
inline VI set1i(int32_t x) { return VI{x, x, x, x}; }
inline V load(const float* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline VI loadi(const int32_t* p) {
  VI v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, V v) { std::memcpy(p, &v, sizeof v); }
inline V load_bf16(const uint16_t* p) {
  H4 h;
  std::memcpy(&h, p, sizeof h);
  return (V)(__builtin_convertvector(h, VI) << 16);
}
inline V load_i8(const int8_t* p) {
  B4 b;
  std::memcpy(&b, p, sizeof b);
  return __builtin_convertvector(b, V);
}
inline V fma(V a, V b, V c) {
#if defined(__aarch64__)
  return (V)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}
inline V max(V a, V b) { return a > b ? a : b; }
inline V min(V a, V b) { return a < b ? a : b; }
inline V to_float(VI v) { return __builtin_convertvector(v, V); }
inline float reduce_add(V v) { return (v[0] + v[2]) + (v[1] + v[3]); }
inline V reduce_four(V a, V b, V c, V d) {
  return V{reduce_add(a), reduce_add(b), reduce_add(c), reduce_add(d)};
}
inline float reduce_max(V v) {
  const float a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
  return a > b ? a : b;
}
inline float half(uint16_t h) {
  // The exponent is rebased by a multiplication, which is exact and knows subnormals.
  const uint32_t bits = static_cast<uint32_t>(h & 0x7fff) << 13;
  float magnitude;
  std::memcpy(&magnitude, &bits, sizeof magnitude);
  magnitude *= 0x1p112f;
  return h & 0x8000 ? -magnitude : magnitude;
}
inline V load_half(const uint16_t* p, int lanes) {
  V v = set1(0);
  for (int i = 0; i < lanes; ++i) v[i] = half(p[i]);
  return v;
}

using Bytes = B16;
constexpr int OFFSET8 = 0, OFFSET4 = 0;  // how far prepared weights are from signed values
inline Bytes load_bytes(const uint8_t* p, int lanes) {
  Bytes v;
  if (lanes == W) {
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  v = B16{};
  std::memcpy(&v, p, static_cast<size_t>(lanes) * 4);
  return v;
}
inline Bytes load_signed(const int8_t* p) {
  Bytes v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void keep(Bytes&) {}
inline Bytes prepare8(Bytes b) { return (B16)((U16)b ^ (uint8_t)0x80); }
inline Bytes low4(Bytes b) { return (B16)((U16)b & (uint8_t)15) - (int8_t)8; }
inline Bytes high4(Bytes b) { return (B16)((U16)b >> 4) - (int8_t)8; }

inline VI dot(VI sum, Bytes w, Bytes v) {
#if defined(DOTPROD)
  return (VI)vdotq_s32((int32x4_t)sum, (int8x16_t)w, (int8x16_t)v);
#elif defined(__aarch64__)
  const int16x8_t low = vmull_s8(vget_low_s8((int8x16_t)w), vget_low_s8((int8x16_t)v));
  const int16x8_t high = vmull_s8(vget_high_s8((int8x16_t)w), vget_high_s8((int8x16_t)v));
  return sum + (VI)vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
#elif defined(__SSE2__)
  const auto a = (__m128i)w, b = (__m128i)v;
  const auto low = [](__m128i i) { return _mm_srai_epi16(_mm_unpacklo_epi8(i, i), 8); };
  const auto high = [](__m128i i) { return _mm_srai_epi16(_mm_unpackhi_epi8(i, i), 8); };
  const __m128 front = _mm_castsi128_ps(_mm_madd_epi16(low(a), low(b)));
  const __m128 back = _mm_castsi128_ps(_mm_madd_epi16(high(a), high(b)));
  return sum + (VI)_mm_shuffle_ps(front, back, 0x88) + (VI)_mm_shuffle_ps(front, back, 0xdd);
#else
  for (int i = 0; i < 4 * W; ++i) sum[i / 4] += static_cast<int32_t>(w[i]) * v[i];
  return sum;
#endif
}
inline VI dot8(VI sum, Bytes w, Bytes x) { return dot(sum, w, x); }
inline VI dot4(VI sum, Bytes w, Bytes x) { return dot(sum, w, x); }
