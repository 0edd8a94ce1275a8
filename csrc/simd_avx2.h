// Copyright 2026 The gemma_mtp_ros Authors
// SPDX-License-Identifier: Apache-2.0

// 256-bit vectors: AVX2, FMA, F16C. Included inside the namespace of the instruction set.

constexpr int W = 8;
constexpr int REGISTERS = 16;

using V = __m256;
typedef int32_t VI __attribute__((vector_size(32)));

inline V set1(float x) { return _mm256_set1_ps(x); }
// Keeps the compiler from reading a value again from memory at each use.
inline void keep(V& v) { asm("" : "+x"(v)); }
inline VI set1i(int32_t x) { return (VI)_mm256_set1_epi32(x); }
inline V load(const float* p) { return _mm256_loadu_ps(p); }
inline VI loadi(const int32_t* p) {
  return (VI)_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline void store(float* p, V v) { _mm256_storeu_ps(p, v); }
inline V load_bf16(const uint16_t* p) {
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
inline V load_i8(const int8_t* p) {
  const __m128i b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b));
}
inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
inline V max(V a, V b) { return _mm256_max_ps(a, b); }
inline V min(V a, V b) { return _mm256_min_ps(a, b); }
inline V to_float(VI v) { return _mm256_cvtepi32_ps((__m256i)v); }
// Sums of four vectors, each added up in the one order of reduce_add.
inline __m128 reduce_four(V a, V b, V c, V d) {
  const V ab = _mm256_unpacklo_ps(a, b) + _mm256_unpackhi_ps(a, b);
  const V cd = _mm256_unpacklo_ps(c, d) + _mm256_unpackhi_ps(c, d);
  const V s = _mm256_shuffle_ps(ab, cd, 0x44) + _mm256_shuffle_ps(ab, cd, 0xee);
  return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}
inline float reduce_add(V v) {
  const V pairs = v + _mm256_shuffle_ps(v, v, 0x4e);
  const V s = pairs + _mm256_shuffle_ps(pairs, pairs, 0xb1);
  return _mm_cvtss_f32(_mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
}
inline float reduce_max(V v) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
inline V load_half(const uint16_t* p, int lanes) {
  __m128i h;
  if (lanes == W) {
    h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  } else {
    alignas(16) uint16_t part[W] = {};
    std::memcpy(part, p, static_cast<size_t>(lanes) * 2);
    h = _mm_load_si128(reinterpret_cast<const __m128i*>(part));
  }
  return _mm256_cvtph_ps(h);
}

using Bytes = __m256i;
constexpr int OFFSET8 = 0, OFFSET4 = 8;  // how far prepared weights are from signed values
inline Bytes load_bytes(const uint8_t* p, int lanes) {
  if (lanes == W) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), index);
  return _mm256_maskload_epi32(reinterpret_cast<const int*>(p), mask);
}
inline Bytes load_signed(const int8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline void keep(Bytes& v) { asm("" : "+x"(v)); }
inline Bytes prepare8(Bytes b) { return _mm256_xor_si256(b, _mm256_set1_epi8(-128)); }
inline Bytes low4(Bytes b) { return _mm256_and_si256(b, _mm256_set1_epi8(15)); }
inline Bytes high4(Bytes b) { return low4(_mm256_srli_epi16(b, 4)); }
inline VI widen(VI sum, __m256i pairs) {
  return sum + (VI)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
// |w| times x with the sign of w: pairs of products of at most 127 * 127 fit in 16 bits.
inline VI dot8(VI sum, Bytes w, Bytes x) {
  return widen(sum, _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)));
}
inline VI dot4(VI sum, Bytes w, Bytes x) {
  return widen(sum, _mm256_maddubs_epi16(w, x));
}
