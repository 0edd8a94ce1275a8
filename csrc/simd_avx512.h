// Copyright 2026 The gemma_mtp_ros Authors
// SPDX-License-Identifier: Apache-2.0

// 512-bit vectors: AVX-512 F, BW, VL, DQ and VNNI. Included inside the namespace of the
// instruction set.

constexpr int W = 16;
constexpr int REGISTERS = 32;

using V = __m512;
typedef int32_t VI __attribute__((vector_size(64)));

inline V set1(float x) { return _mm512_set1_ps(x); }
// Keeps the compiler from reading a value again from memory at each use.
inline void keep(V& v) { asm("" : "+v"(v)); }
inline VI set1i(int32_t x) { return (VI)_mm512_set1_epi32(x); }
inline V load(const float* p) { return _mm512_loadu_ps(p); }
inline VI loadi(const int32_t* p) { return (VI)_mm512_loadu_si512(p); }
inline void store(float* p, V v) { _mm512_storeu_ps(p, v); }
inline V load_bf16(const uint16_t* p) {
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
inline V load_i8(const int8_t* p) {
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
}
inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
inline V max(V a, V b) { return _mm512_max_ps(a, b); }
inline V min(V a, V b) { return _mm512_min_ps(a, b); }
inline V to_float(VI v) { return _mm512_cvtepi32_ps((__m512i)v); }
// Sums of four vectors, each added up in the one order of reduce_add.
inline __m128 reduce_four(V a, V b, V c, V d) {
  const V ab = _mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b);
  const V cd = _mm512_unpacklo_ps(c, d) + _mm512_unpackhi_ps(c, d);
  const V s = _mm512_shuffle_ps(ab, cd, 0x44) + _mm512_shuffle_ps(ab, cd, 0xee);
  const __m256 t = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
  return _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
}
inline float reduce_add(V v) {
  const V pairs = v + _mm512_shuffle_ps(v, v, 0x4e);
  const V s = pairs + _mm512_shuffle_ps(pairs, pairs, 0xb1);
  const __m256 t = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
  return _mm_cvtss_f32(_mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1)));
}
inline float reduce_max(V v) { return _mm512_reduce_max_ps(v); }
inline V load_half(const uint16_t* p, int lanes) {
  if (lanes == W) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  const __mmask16 mask = static_cast<__mmask16>((1u << lanes) - 1);
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p));
}

using Bytes = __m512i;
constexpr int OFFSET8 = 128, OFFSET4 = 8;  // how far prepared weights are from signed values
inline Bytes load_bytes(const uint8_t* p, int lanes) {
  if (lanes == W) return _mm512_loadu_si512(p);
  return _mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << lanes) - 1), p);
}
inline Bytes load_signed(const int8_t* p) { return _mm512_loadu_si512(p); }
inline void keep(Bytes& v) { asm("" : "+v"(v)); }
inline Bytes prepare8(Bytes b) { return b; }
inline Bytes low4(Bytes b) { return _mm512_and_si512(b, _mm512_set1_epi8(15)); }
inline Bytes high4(Bytes b) { return low4(_mm512_srli_epi16(b, 4)); }
inline VI dot8(VI sum, Bytes w, Bytes x) {
  return (VI)_mm512_dpbusd_epi32((__m512i)sum, w, x);
}
inline VI dot4(VI sum, Bytes w, Bytes x) { return dot8(sum, w, x); }
