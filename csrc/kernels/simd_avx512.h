// The vectors of simd.h on AVX-512: one register each. BF16 and VNNI instructions where the build has them.
#pragma once

#include <immintrin.h>

namespace octavo::OCTAVO_ISA {

using f32x16 = __m512;

struct i32x16 {
    __m512i v;
};

struct bytes64 {
    __m512i v;
};

using lanes = __mmask16;

OCTAVO_INLINE f32x16 load(const float* p) {
    return _mm512_loadu_ps(p);
}

OCTAVO_INLINE i32x16 load(const int32_t* p) {
    return {_mm512_loadu_si512(p)};
}

OCTAVO_INLINE bytes64 load(const uint8_t* p) {
    return {_mm512_loadu_si512(p)};
}

OCTAVO_INLINE void store(float* p, f32x16 x) {
    _mm512_storeu_ps(p, x);
}

OCTAVO_INLINE void store(int32_t* p, i32x16 x) {
    _mm512_storeu_si512(p, x.v);
}

OCTAVO_INLINE void store(uint8_t* p, bytes64 x) {
    _mm512_storeu_si512(p, x.v);
}

OCTAVO_INLINE f32x16 zeros() {
    return _mm512_setzero_ps();
}

OCTAVO_INLINE f32x16 splat(float x) {
    return _mm512_set1_ps(x);
}

OCTAVO_INLINE i32x16 splat(int32_t x) {
    return {_mm512_set1_epi32(x)};
}

OCTAVO_INLINE i32x16 operator+(i32x16 a, i32x16 b) {
    return {_mm512_add_epi32(a.v, b.v)};
}

OCTAVO_INLINE i32x16 operator-(i32x16 a, i32x16 b) {
    return {_mm512_sub_epi32(a.v, b.v)};
}

OCTAVO_INLINE i32x16 operator*(i32x16 a, i32x16 b) {
    return {_mm512_mullo_epi32(a.v, b.v)};
}

OCTAVO_INLINE i32x16 operator&(i32x16 a, i32x16 b) {
    return {_mm512_and_si512(a.v, b.v)};
}

OCTAVO_INLINE i32x16 operator|(i32x16 a, i32x16 b) {
    return {_mm512_or_si512(a.v, b.v)};
}

OCTAVO_INLINE i32x16 shift_right(i32x16 x, int n) {
    return {_mm512_srl_epi32(x.v, _mm_cvtsi32_si128(n))};
}

OCTAVO_INLINE i32x16 shift_left(i32x16 x, int n) {
    return {_mm512_sll_epi32(x.v, _mm_cvtsi32_si128(n))};
}

OCTAVO_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
    return _mm512_fmadd_ps(a, b, c);
}

OCTAVO_INLINE f32x16 max(f32x16 a, f32x16 b) {
    return _mm512_max_ps(a, b);
}

OCTAVO_INLINE f32x16 min(f32x16 a, f32x16 b) {
    return _mm512_min_ps(a, b);
}

OCTAVO_INLINE f32x16 abs(f32x16 x) {
    return _mm512_abs_ps(x);
}

// 2^(x - n) by a polynomial (minimax, degree 6, on [-0.5, 0.5]), times 2^n.
OCTAVO_INLINE f32x16 exp2(f32x16 x) {
    const f32x16 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);  // infinity: 0
    f32x16 p = splat(1.535336188319500e-4f);
    p = fma(p, f, splat(1.339887440266574e-3f));
    p = fma(p, f, splat(9.618437357674640e-3f));
    p = fma(p, f, splat(5.550332471162809e-2f));
    p = fma(p, f, splat(2.402264791363012e-1f));
    p = fma(p, f, splat(6.931472028550421e-1f));
    p = fma(p, f, splat(1.0f));
    // 0 below -126, because processors are slow to make subnormals; NaN stays NaN.
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, splat(-126.0f), _CMP_NLT_UQ), p, x - f);
}

OCTAVO_INLINE float reduce_add(f32x16 x) {
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}

OCTAVO_INLINE float reduce_max(f32x16 x) {
    return _mm512_reduce_max_ps(x);
}

OCTAVO_INLINE f32x16 to_f32(i32x16 x) {
    return _mm512_cvtepi32_ps(x.v);
}

OCTAVO_INLINE i32x16 to_i32(f32x16 x) {
    return {_mm512_cvtps_epi32(x)};
}

OCTAVO_INLINE f32x16 load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

OCTAVO_INLINE f32x16 load_bf16(const uint16_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

OCTAVO_INLINE void store_bf16(uint16_t* p, f32x16 x) {
    // Not the BF16 instruction, which flushes denormals: the same bits in every build.
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
}

OCTAVO_INLINE i32x16 load_u8(const uint8_t* p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}

OCTAVO_INLINE i32x16 load_i8(const uint8_t* p) {
    return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}

OCTAVO_INLINE void store_i8(int8_t* p, i32x16 x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v));
}

OCTAVO_INLINE bytes64 splat_byte(uint8_t x) {
    return {_mm512_set1_epi8(static_cast<char>(x))};
}

OCTAVO_INLINE bytes64 operator&(bytes64 a, bytes64 b) {
    return {_mm512_and_si512(a.v, b.v)};
}

OCTAVO_INLINE bytes64 operator-(bytes64 a, bytes64 b) {
    return {_mm512_sub_epi8(a.v, b.v)};
}

OCTAVO_INLINE bytes64 operator|(bytes64 a, bytes64 b) {
    return {_mm512_or_si512(a.v, b.v)};
}

template <int N>
OCTAVO_INLINE bytes64 shift_right(bytes64 x) {
    return {_mm512_srli_epi16(x.v, N)};
}

template <int N>
OCTAVO_INLINE bytes64 shift_left(bytes64 x) {
    return {_mm512_slli_epi16(x.v, N)};
}

// table[index] for each byte; indices are below 16.
OCTAVO_INLINE bytes64 lookup(const uint8_t (&table)[16], bytes64 indices) {
    const __m128i lane = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(lane), indices.v)};
}

OCTAVO_INLINE bytes64 splat4(const int8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    return {_mm512_set1_epi32(four)};
}

OCTAVO_INLINE bytes64 load_pairs(const uint16_t* p) {
    return {_mm512_loadu_si512(p)};
}

OCTAVO_INLINE bytes64 splat_pair(const uint16_t* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, 4);
    return {_mm512_set1_epi32(pair)};
}

#if defined(__AVX512VNNI__)
OCTAVO_INLINE i32x16 dot4(i32x16 acc, bytes64 u, bytes64 s) {
    return {_mm512_dpbusd_epi32(acc.v, u.v, s.v)};
}
#else
// Even and odd bytes apart, as 16 bit: sums of two products of 8 bits fit 32 bits and never saturate.
OCTAVO_INLINE i32x16 dot4(i32x16 acc, bytes64 u, bytes64 s) {
    const __m512i even = _mm512_madd_epi16(_mm512_and_si512(u.v, _mm512_set1_epi16(0xff)),
                                           _mm512_srai_epi16(_mm512_slli_epi16(s.v, 8), 8));
    const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(u.v, 8), _mm512_srai_epi16(s.v, 8));
    return {_mm512_add_epi32(acc.v, _mm512_add_epi32(even, odd))};
}
#endif

OCTAVO_INLINE f32x16 first_of_pairs(bytes64 x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(x.v, 16));
}

OCTAVO_INLINE f32x16 second_of_pairs(bytes64 x) {
    return _mm512_castsi512_ps(_mm512_and_si512(x.v, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}

#if defined(__AVX512BF16__)
OCTAVO_INLINE void store_bf16_pairs(uint16_t* p, f32x16 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
}

OCTAVO_INLINE f32x16 dot_pairs(f32x16 acc, bytes64 a, bytes64 b) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v));
}
#else
OCTAVO_INLINE f32x16 dot_pairs(f32x16 acc, bytes64 a, bytes64 b) {
    acc = fma(first_of_pairs(a), first_of_pairs(b), acc);
    return fma(second_of_pairs(a), second_of_pairs(b), acc);
}
#endif

OCTAVO_INLINE lanes first_lanes(int n) {
    return static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1);
}

OCTAVO_INLINE lanes greater(f32x16 a, f32x16 b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}

OCTAVO_INLINE f32x16 select(lanes mask, f32x16 a, f32x16 b) {
    return _mm512_mask_mov_ps(b, mask, a);
}

OCTAVO_INLINE i32x16 select(lanes mask, i32x16 a, i32x16 b) {
    return {_mm512_mask_mov_epi32(b.v, mask, a.v)};
}

}  // namespace octavo::OCTAVO_ISA
