// The vectors that kernels are written in: 16 lanes (or 64 bytes) on every processor.
//
// simd_avx512.h maps them to one register each; simd_halves.h, for AVX2 and for everything else, to two or
// four. Kernels are compiled in a namespace of their instruction set and use nothing of the standard library
// but constants and plain types, so that no inline function compiled for one processor is linked into
// another's.
//
//   f32x16, i32x16, bytes64
//
//   load(const float*) load(const int32_t*) load(const uint8_t*)     unaligned; 16, 16, 64 elements
//   store(T*, vector)   zeros()   splat(float)   splat(int32_t)
//   + - * /             of f32x16; + - * & | of i32x16
//   shift_right(i32x16, int)   shift_left   of unsigned 32-bit lanes, by less than 32
//   fma(a, b, c)        a * b + c; one rounding where the processor has it, the same in all kernels
//   max min             of f32x16: (a > b ? a : b) as x86 has it, so the second if either is NaN
//   exp2(x)             2^x within 2 ulp for x in [-126, 128); 0 below, infinity above
//   reduce_add reduce_max   over lanes, in a fixed order (halves: 8 with 8, 4 with 4, 2 with 2, 1 with 1)
//   to_f32(i32x16)      to_i32(f32x16): to nearest, ties to even
//   load_f16 load_bf16(const uint16_t*)   store_bf16(uint16_t*, f32x16): to nearest, ties to even
//   load_u8 load_i8(const uint8_t*)   to i32x16     store_i8(int8_t*, i32x16): the low bytes
//   load_pairs(const uint16_t*)   32 bf16 as pairs    splat_pair(const uint16_t*)   one pair in all lanes
//   first_of_pairs second_of_pairs(bytes64)   the bf16 of pairs as f32x16
//   store_bf16_pairs(uint16_t*, f32x16)   as store_bf16, for dot_pairs and tiles, which take subnormals for 0
//   dot_pairs(acc, a, b)   acc + a.first * b.first + a.second * b.second of pairs of bf16, in f32x16
//   splat4(const int8_t*)  four bytes in all lanes
//   dot4(acc, u, s)     acc + sum of four products u8 * s8 in each lane, exact
//   shift_right<n>(bytes64)   shift_left<n>   of 16-bit fields; operators & | and - (of bytes)
//   splat_byte(uint8_t)   lookup(table, indices)   of a table of 16 bytes
//   first_lanes(n)      mask of the first n lanes, of type `lanes`; greater(a, b) of f32x16 gives one, too
//   select(mask, a, b)  a where the mask is set, b elsewhere
#pragma once

#include <cstddef>
#include <cstdint>

#include "platform/inline.h"

#if defined(__AVX512F__)
#include "kernels/simd_avx512.h"
#else
#include "kernels/simd_halves.h"
#endif

namespace octavo::OCTAVO_ISA {

constexpr int LANES = 16;
constexpr float LOWEST = -0x1.fffffep127f;  // of finite numbers

template <class T>
OCTAVO_INLINE T smaller(T a, T b) {
    return b < a ? b : a;
}

template <class T>
OCTAVO_INLINE T larger(T a, T b) {
    return a < b ? b : a;
}

OCTAVO_INLINE void prefetch(const void* address) {
    __builtin_prefetch(address, 0, 3);
}

// Into the second-level cache.
OCTAVO_INLINE void prefetch_far(const void* address) {
    __builtin_prefetch(address, 0, 2);
}

#if !defined(__AVX512BF16__)
OCTAVO_INLINE void store_bf16_pairs(uint16_t* p, f32x16 x) {
    store_bf16(p, x);
}
#endif

// e^x, from exp2; relative error below 4e-6 where it is neither 0 nor infinite.
OCTAVO_INLINE f32x16 exp(f32x16 x) {
    return exp2(x * splat(1.44269504f));
}

// z / (1 + e^-z).
OCTAVO_INLINE f32x16 silu(f32x16 z) {
    return z / (splat(1.0f) + exp(splat(0.0f) - z));
}

// z / 2 * (1 + tanh(u)) = z / (1 + e^-2u) with u = sqrt(2 / pi) * (z + 0.044715 z^3).
OCTAVO_INLINE f32x16 gelu_tanh(f32x16 z) {
    constexpr float LINEAR = -1.5957691216f;  // -2 sqrt(2 / pi)
    constexpr float CUBIC = LINEAR * 0.044715f;
    return z / (splat(1.0f) + exp(z * fma(z * z, splat(CUBIC), splat(LINEAR))));
}

}  // namespace octavo::OCTAVO_ISA
