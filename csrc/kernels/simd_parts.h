// What simd_halves.h builds vectors of: one register, 32 bytes of it on AVX2 and 16 elsewhere.
//
// Parts are vectors of the compiler's own (GCC's vector extension, which clang has too), so that + - * / & |
// << >> and comparisons need no intrinsics. AVX2 and the portable build each define the rest below.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace octavo::OCTAVO_ISA {

#if defined(__AVX2__)
constexpr int PART_BYTES = 32;
#else
constexpr int PART_BYTES = 16;
#endif

#define OCTAVO_PART __attribute__((vector_size(PART_BYTES)))
typedef float Floats OCTAVO_PART;
typedef int32_t Ints OCTAVO_PART;
typedef uint32_t Words OCTAVO_PART;
typedef int16_t Shorts OCTAVO_PART;
typedef uint16_t Halfwords OCTAVO_PART;
typedef uint8_t Bytes OCTAVO_PART;
#undef OCTAVO_PART

constexpr int PART_LANES = PART_BYTES / 4;  // of 32 bits, in a part

// The same bits as another type.
template <class To, class From>
OCTAVO_INLINE To as(From x) {
    static_assert(sizeof(To) == sizeof(From), "bits are neither added nor dropped");
    return reinterpret_cast<To>(x);
}

template <class Part>
OCTAVO_INLINE Part load_part(const void* p) {
    Part x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
}

OCTAVO_INLINE float max(float a, float b) {
    return a > b ? a : b;
}

#if defined(__AVX2__)

// ---- Parts on AVX2 ----

OCTAVO_INLINE Floats fma(Floats a, Floats b, Floats c) {
    return _mm256_fmadd_ps(a, b, c);
}

OCTAVO_INLINE Floats max(Floats a, Floats b) {
    return _mm256_max_ps(a, b);
}

OCTAVO_INLINE Floats min(Floats a, Floats b) {
    return _mm256_min_ps(a, b);
}

OCTAVO_INLINE Ints to_i32(Floats x) {
    return as<Ints>(_mm256_cvtps_epi32(x));
}

OCTAVO_INLINE Words widen_u16(const uint16_t* p) {
    return as<Words>(_mm256_cvtepu16_epi32(load_part<__m128i>(p)));
}

OCTAVO_INLINE Ints widen_u8(const uint8_t* p) {
    return as<Ints>(_mm256_cvtepu8_epi32(_mm_loadu_si64(p)));
}

OCTAVO_INLINE Ints widen_i8(const uint8_t* p) {
    return as<Ints>(_mm256_cvtepi8_epi32(_mm_loadu_si64(p)));
}

OCTAVO_INLINE Floats widen_f16(const uint16_t* p) {
    return _mm256_cvtph_ps(load_part<__m128i>(p));
}

// Numbers below 2^16, as 16 bits each.
OCTAVO_INLINE __m128i narrow(Words x) {
    const __m256i wide = as<__m256i>(x);
    return _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
}

OCTAVO_INLINE void store_low_16(uint16_t* p, Words x) {
    const __m128i narrowed = narrow(x & 0xffff);
    __builtin_memcpy(p, &narrowed, 16);
}

OCTAVO_INLINE void store_low_8(int8_t* p, Ints x) {
    const __m128i narrowed = narrow(as<Words>(x) & 0xff);
    _mm_storeu_si64(p, _mm_packus_epi16(narrowed, narrowed));
}

OCTAVO_INLINE float reduce_add(Floats x) {
    const __m128 sum = _mm256_castps256_ps128(x) + _mm256_extractf128_ps(x, 1);
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

OCTAVO_INLINE float reduce_max(Floats x) {
    const __m128 largest = _mm_max_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(x));
    return max(max(largest[0], largest[2]), max(largest[1], largest[3]));
}

// Even and odd bytes apart, as 16 bit: the instruction that multiplies bytes would saturate.
OCTAVO_INLINE Ints dot4(Ints acc, Bytes u, Bytes s) {
    const Halfwords even_u = as<Halfwords>(u) & 0xff, odd_u = as<Halfwords>(u) >> 8;
    const Shorts even_s = as<Shorts>(as<Halfwords>(s) << 8) >> 8, odd_s = as<Shorts>(s) >> 8;
    const Ints even = as<Ints>(_mm256_madd_epi16(as<__m256i>(even_u), as<__m256i>(even_s)));
    const Ints odd = as<Ints>(_mm256_madd_epi16(as<__m256i>(odd_u), as<__m256i>(odd_s)));
    return acc + (even + odd);
}

OCTAVO_INLINE Bytes lookup(const uint8_t (&table)[16], Bytes indices) {
    const __m256i both = _mm256_broadcastsi128_si256(load_part<__m128i>(table));
    return as<Bytes>(_mm256_shuffle_epi8(both, as<__m256i>(indices)));
}

#else

// ---- Parts of 16 bytes, for any processor ----

// Nothing fuses an addition to a multiplication where that would take a function call.
OCTAVO_INLINE Floats fma(Floats a, Floats b, Floats c) {
#if defined(__FP_FAST_FMAF)
    return Floats{__builtin_fmaf(a[0], b[0], c[0]), __builtin_fmaf(a[1], b[1], c[1]),
                  __builtin_fmaf(a[2], b[2], c[2]), __builtin_fmaf(a[3], b[3], c[3])};
#else
    return a * b + c;
#endif
}

OCTAVO_INLINE Floats max(Floats a, Floats b) {
    return a > b ? a : b;
}

OCTAVO_INLINE Floats min(Floats a, Floats b) {
    return a < b ? a : b;
}

// As x86 converts: what does not fit, and NaN, becomes the smallest integer.
OCTAVO_INLINE Ints to_i32(Floats x) {
    const Words sign = as<Words>(x) & 0x80000000u;
    const Floats magnitude = as<Floats>(as<Words>(x) ^ sign);
    const Floats unit =
        as<Floats>(as<Words>(Floats{} + 0x1p23f) | sign);  // numbers this large have no fraction
    const Floats rounded = magnitude < 0x1p23f ? (x + unit) - unit : x;
    const Ints fits = magnitude < 0x1p31f;
    const Ints converted = __builtin_convertvector(fits ? rounded : Floats{}, Ints);
    return fits ? converted : Ints{} + INT32_MIN;
}

OCTAVO_INLINE Words widen_u16(const uint16_t* p) {
    return Words{p[0], p[1], p[2], p[3]};
}

OCTAVO_INLINE Ints widen_u8(const uint8_t* p) {
    return Ints{p[0], p[1], p[2], p[3]};
}

OCTAVO_INLINE Ints widen_i8(const uint8_t* p) {
    return as<Ints>(as<Words>(widen_u8(p)) << 24) >> 24;
}

// Rebiasing the exponent, by arithmetic on the bits: once for normal numbers, twice for infinity and NaN.
OCTAVO_INLINE Floats widen_f16(const uint16_t* p) {
    constexpr int32_t REBIAS = (127 - 15) << 23;
    const Words half = widen_u16(p);
    const Ints magnitude = as<Ints>(half & 0x7fff);
    const Ints normal = (magnitude << 13) + REBIAS;
    const Floats denormal = __builtin_convertvector(magnitude, Floats) * 0x1p-24f;
    const Ints finite = magnitude < 0x400 ? as<Ints>(denormal) : normal;
    const Ints bits = magnitude > 0x7bff ? normal + REBIAS : finite;
    return as<Floats>(as<Words>(bits) | (half & 0x8000) << 16);
}

OCTAVO_INLINE void store_low_16(uint16_t* p, Words x) {
    typedef uint16_t Narrow __attribute__((vector_size(8)));
    const Narrow narrowed = __builtin_convertvector(x, Narrow);
    __builtin_memcpy(p, &narrowed, sizeof narrowed);
}

OCTAVO_INLINE void store_low_8(int8_t* p, Ints x) {
    typedef int8_t Narrow __attribute__((vector_size(4)));
    const Narrow narrowed = __builtin_convertvector(x, Narrow);
    __builtin_memcpy(p, &narrowed, sizeof narrowed);
}

OCTAVO_INLINE float reduce_add(Floats x) {
    return (x[0] + x[2]) + (x[1] + x[3]);
}

OCTAVO_INLINE float reduce_max(Floats x) {
    return max(max(x[0], x[2]), max(x[1], x[3]));
}

// The sum of both halves of each lane.
OCTAVO_INLINE Ints add_pairs(Shorts x) {
    return (as<Ints>(as<Words>(x) << 16) >> 16) + (as<Ints>(x) >> 16);
}

// Even and odd bytes apart: each product fits 16 bits, no sum of two does.
OCTAVO_INLINE Ints dot4(Ints acc, Bytes u, Bytes s) {
    const Shorts even = as<Shorts>(as<Halfwords>(u) & 0xff) * (as<Shorts>(as<Halfwords>(s) << 8) >> 8);
    const Shorts odd = as<Shorts>(as<Halfwords>(u) >> 8) * (as<Shorts>(s) >> 8);
    return acc + (add_pairs(even) + add_pairs(odd));
}

OCTAVO_INLINE Bytes lookup(const uint8_t (&table)[16], Bytes indices) {
    Bytes found = indices;
    for (int i = 0; i < PART_BYTES; ++i) {
        found[i] = table[indices[i]];
    }
    return found;
}

#endif

// ---- Parts on every processor ----

OCTAVO_INLINE Floats abs(Floats x) {
    return as<Floats>(as<Words>(x) & 0x7fffffffu);
}

OCTAVO_INLINE Floats to_f32(Ints x) {
    return __builtin_convertvector(x, Floats);
}

OCTAVO_INLINE Ints greater(Floats a, Floats b) {
    return a > b;
}

OCTAVO_INLINE Floats select(Ints mask, Floats a, Floats b) {
    return mask ? a : b;
}

OCTAVO_INLINE Ints select(Ints mask, Ints a, Ints b) {
    return mask ? a : b;
}

// The polynomial of simd_avx512.h; the power of two is then added to the exponent, where it always fits: for
// 2^128 the polynomial is 1, and what comes of it are the bits of infinity.
OCTAVO_INLINE Floats exp2(Floats x) {
    const Floats clamped = min(Floats{} + 128.0f, max(Floats{} - 150.0f, x));  // in this order: NaN stays NaN
    const Ints n = to_i32(clamped);
    const Floats f = clamped - to_f32(n);
    Floats p = Floats{} + 1.535336188319500e-4f;
    p = fma(p, f, Floats{} + 1.339887440266574e-3f);
    p = fma(p, f, Floats{} + 9.618437357674640e-3f);
    p = fma(p, f, Floats{} + 5.550332471162809e-2f);
    p = fma(p, f, Floats{} + 2.402264791363012e-1f);
    p = fma(p, f, Floats{} + 6.931472028550421e-1f);
    p = fma(p, f, Floats{} + 1.0f);
    const Floats y = as<Floats>(as<Words>(p) + (as<Words>(n) << 23));
    return x < -126.0f ? Floats{} : y;
}

OCTAVO_INLINE void store_bf16(uint16_t* p, Floats x) {
    const Words bits = as<Words>(x);
    const Words rounded = bits + ((bits >> 16 & 1) + 0x7fff);
    store_low_16(p, (x == x ? rounded : Words{} + 0x7fc00000u) >> 16);
}

OCTAVO_INLINE Ints shift_right(Ints x, int n) {
    return as<Ints>(as<Words>(x) >> n);
}

OCTAVO_INLINE Ints shift_left(Ints x, int n) {
    return as<Ints>(as<Words>(x) << n);
}

template <int N>
OCTAVO_INLINE Bytes shift_right(Bytes x) {
    return as<Bytes>(as<Halfwords>(x) >> N);
}

template <int N>
OCTAVO_INLINE Bytes shift_left(Bytes x) {
    return as<Bytes>(as<Halfwords>(x) << N);
}

OCTAVO_INLINE Floats first_of_pairs(Bytes x) {
    return as<Floats>(as<Words>(x) << 16);
}

OCTAVO_INLINE Floats second_of_pairs(Bytes x) {
    return as<Floats>(as<Words>(x) & 0xffff0000u);
}

OCTAVO_INLINE Floats dot_pairs(Floats acc, Bytes a, Bytes b) {
    acc = fma(first_of_pairs(a), first_of_pairs(b), acc);
    return fma(second_of_pairs(a), second_of_pairs(b), acc);
}

}  // namespace octavo::OCTAVO_ISA
