// fp8_e4m3: a sign, 4 bits of exponent with bias 7, 3 bits of mantissa; no infinities, and NaN where all
// seven bits are set (OCP 8-bit Floating Point Specification, 2023).
//
// Where a function takes one number, it has no branches: compilers make vectors of the loops around it.
#pragma once

#include "kernels/simd.h"

namespace octavo::OCTAVO_ISA {

constexpr float LARGEST_FP8 = 448.0f;

OCTAVO_INLINE uint32_t bits_of(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}

// The nearest fp8, ties to even; numbers too large become the largest, NaN stays NaN.
OCTAVO_INLINE uint8_t to_fp8(float x) {
    constexpr float SMALLEST_NORMAL = 0x1p-6f;
    // The last bit of a float of this size is that of a subnormal fp8.
    constexpr float SUBNORMAL_UNIT = 0x1p14f;
    constexpr uint32_t DROPPED_BITS = 20;  // of the mantissa
    constexpr uint32_t BIAS = (127 - 7) << 3;
    const float magnitude = __builtin_fabsf(x) < LARGEST_FP8 ? __builtin_fabsf(x) : LARGEST_FP8;
    const uint32_t bits = bits_of(magnitude);
    const uint32_t half = (1u << (DROPPED_BITS - 1)) - 1 + (bits >> DROPPED_BITS & 1);
    const uint32_t normal = ((bits + half) >> DROPPED_BITS) - BIAS;
    const uint32_t subnormal = bits_of(magnitude + SUBNORMAL_UNIT) - bits_of(SUBNORMAL_UNIT);
    const uint32_t number = magnitude < SMALLEST_NORMAL ? subnormal : normal;
    return static_cast<uint8_t>((bits_of(x) >> 24 & 0x80) | (x == x ? number : 0x7f));
}

// The same number in bf16, exactly.
OCTAVO_INLINE uint16_t fp8_to_bf16(uint8_t x) {
    constexpr uint16_t BIAS = (127 - 7) << 7, NAN_BF16 = 0x7fc0,
                       UNIT = (127 - 9) << 7;  // UNIT: 2^-9, of subnormals
    const uint16_t magnitude = x & 0x7f;
    const uint16_t one = magnitude == 0 ? 0 : UNIT;  // of 1 bit, as the subnormals that follow of 2 and of 3
    const uint16_t two = UNIT + (1 << 7) + (magnitude - 2) * 64;
    const uint16_t three = UNIT + (2 << 7) + (magnitude - 4) * 32;
    uint16_t bits = BIAS + (magnitude << 4);
    bits = magnitude < 8 ? three : bits;
    bits = magnitude < 4 ? two : bits;
    bits = magnitude < 2 ? one : bits;
    bits = magnitude == 0x7f ? NAN_BF16 : bits;
    return static_cast<uint16_t>(bits | (x & 0x80) << 8);
}

// The same for `size` numbers, a multiple of 32.
inline void fp8_to_bf16(const uint8_t* x, int size, uint16_t* out) {
#if defined(__AVX512BW__)
    // Subnormals from a table: 2.5 times as fast as what compilers make of the loop below.
    alignas(64) constexpr uint16_t SUBNORMALS[32] = {0,      0x3b00, 0x3b80, 0x3bc0,
                                                     0x3c00, 0x3c20, 0x3c40, 0x3c60};
    const __m512i subnormals = _mm512_load_si512(SUBNORMALS);
    for (int i = 0; i < size; i += 32) {
        const __m512i wide =
            _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)));
        const __m512i magnitude = _mm512_and_si512(wide, _mm512_set1_epi16(0x7f));
        const __mmask32 is_subnormal = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
        const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f));
        __m512i bits = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16((127 - 7) << 7));
        bits = _mm512_mask_permutexvar_epi16(bits, is_subnormal, magnitude, subnormals);
        bits = _mm512_mask_mov_epi16(bits, is_nan, _mm512_set1_epi16(0x7fc0));
        const __m512i sign = _mm512_slli_epi16(_mm512_srli_epi16(wide, 7), 15);
        _mm512_storeu_si512(out + i, _mm512_or_si512(bits, sign));
    }
#else
    for (int i = 0; i < size; ++i) {
        out[i] = fp8_to_bf16(x[i]);
    }
#endif
}

}  // namespace octavo::OCTAVO_ISA
