// The vectors of simd.h where the widest register is shorter: halves of halves, down to a part
// (simd_parts.h).
//
// Everything is inlined and no part is chosen by a number known only at run time: that keeps them in
// registers.
#pragma once

#include "kernels/simd_parts.h"

namespace octavo::OCTAVO_ISA {

template <class T>
struct Halves {
    T low, high;
};

#if defined(__AVX2__)

template <class Part>
using Whole = Halves<Part>;

// A vector of part(0), part(1), ...
template <class Make>
OCTAVO_INLINE auto join(Make part) -> Whole<decltype(part(0))> {
    return {part(0), part(1)};
}

#else

template <class Part>
using Whole = Halves<Halves<Part>>;

template <class Make>
OCTAVO_INLINE auto join(Make part) -> Whole<decltype(part(0))> {
    return {{part(0), part(1)}, {part(2), part(3)}};
}

#endif

using f32x16 = Whole<Floats>;
using i32x16 = Whole<Ints>;
using bytes64 = Whole<Bytes>;
using lanes = Whole<Ints>;  // all bits of a lane, or none

template <class T>
OCTAVO_INLINE Halves<T> operator+(Halves<T> a, Halves<T> b) {
    return {a.low + b.low, a.high + b.high};
}

template <class T>
OCTAVO_INLINE Halves<T> operator-(Halves<T> a, Halves<T> b) {
    return {a.low - b.low, a.high - b.high};
}

template <class T>
OCTAVO_INLINE Halves<T> operator*(Halves<T> a, Halves<T> b) {
    return {a.low * b.low, a.high * b.high};
}

template <class T>
OCTAVO_INLINE Halves<T> operator/(Halves<T> a, Halves<T> b) {
    return {a.low / b.low, a.high / b.high};
}

template <class T>
OCTAVO_INLINE Halves<T> operator&(Halves<T> a, Halves<T> b) {
    return {a.low & b.low, a.high & b.high};
}

template <class T>
OCTAVO_INLINE Halves<T> operator|(Halves<T> a, Halves<T> b) {
    return {a.low | b.low, a.high | b.high};
}

template <class T>
OCTAVO_INLINE Halves<T> max(Halves<T> a, Halves<T> b) {
    return {max(a.low, b.low), max(a.high, b.high)};
}

template <class T>
OCTAVO_INLINE Halves<T> min(Halves<T> a, Halves<T> b) {
    return {min(a.low, b.low), min(a.high, b.high)};
}

template <class T>
OCTAVO_INLINE Halves<T> fma(Halves<T> a, Halves<T> b, Halves<T> c) {
    return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)};
}

template <class T>
OCTAVO_INLINE Halves<T> abs(Halves<T> x) {
    return {abs(x.low), abs(x.high)};
}

template <class T>
OCTAVO_INLINE Halves<T> exp2(Halves<T> x) {
    return {exp2(x.low), exp2(x.high)};
}

template <class T>
OCTAVO_INLINE auto to_f32(Halves<T> x) -> Halves<decltype(to_f32(x.low))> {
    return {to_f32(x.low), to_f32(x.high)};
}

template <class T>
OCTAVO_INLINE auto to_i32(Halves<T> x) -> Halves<decltype(to_i32(x.low))> {
    return {to_i32(x.low), to_i32(x.high)};
}

template <class T>
OCTAVO_INLINE auto greater(Halves<T> a, Halves<T> b) -> Halves<decltype(greater(a.low, b.low))> {
    return {greater(a.low, b.low), greater(a.high, b.high)};
}

template <class Mask, class T>
OCTAVO_INLINE Halves<T> select(Halves<Mask> mask, Halves<T> a, Halves<T> b) {
    return {select(mask.low, a.low, b.low), select(mask.high, a.high, b.high)};
}

template <class Sum, class T>
OCTAVO_INLINE Halves<Sum> dot4(Halves<Sum> acc, Halves<T> u, Halves<T> s) {
    return {dot4(acc.low, u.low, s.low), dot4(acc.high, u.high, s.high)};
}

template <class T>
OCTAVO_INLINE auto first_of_pairs(Halves<T> x) -> Halves<decltype(first_of_pairs(x.low))> {
    return {first_of_pairs(x.low), first_of_pairs(x.high)};
}

template <class T>
OCTAVO_INLINE auto second_of_pairs(Halves<T> x) -> Halves<decltype(second_of_pairs(x.low))> {
    return {second_of_pairs(x.low), second_of_pairs(x.high)};
}

template <class Sum, class T>
OCTAVO_INLINE Halves<Sum> dot_pairs(Halves<Sum> acc, Halves<T> a, Halves<T> b) {
    return {dot_pairs(acc.low, a.low, b.low), dot_pairs(acc.high, a.high, b.high)};
}

template <class T>
OCTAVO_INLINE Halves<T> shift_right(Halves<T> x, int n) {
    return {shift_right(x.low, n), shift_right(x.high, n)};
}

template <class T>
OCTAVO_INLINE Halves<T> shift_left(Halves<T> x, int n) {
    return {shift_left(x.low, n), shift_left(x.high, n)};
}

template <int N, class T>
OCTAVO_INLINE Halves<T> shift_right(Halves<T> x) {
    return {shift_right<N>(x.low), shift_right<N>(x.high)};
}

template <int N, class T>
OCTAVO_INLINE Halves<T> shift_left(Halves<T> x) {
    return {shift_left<N>(x.low), shift_left<N>(x.high)};
}

template <class T>
OCTAVO_INLINE Halves<T> lookup(const uint8_t (&table)[16], Halves<T> indices) {
    return {lookup(table, indices.low), lookup(table, indices.high)};
}

template <class T>
OCTAVO_INLINE float reduce_add(Halves<T> x) {
    return reduce_add(x.low + x.high);
}

template <class T>
OCTAVO_INLINE float reduce_max(Halves<T> x) {
    return reduce_max(max(x.high, x.low));
}

// ---- Memory ----

OCTAVO_INLINE f32x16 load(const float* p) {
    return join([=](int i) { return load_part<Floats>(p + i * PART_LANES); });
}

OCTAVO_INLINE i32x16 load(const int32_t* p) {
    return join([=](int i) { return load_part<Ints>(p + i * PART_LANES); });
}

OCTAVO_INLINE bytes64 load(const uint8_t* p) {
    return join([=](int i) { return load_part<Bytes>(p + i * PART_BYTES); });
}

OCTAVO_INLINE bytes64 load_pairs(const uint16_t* p) {
    return load(reinterpret_cast<const uint8_t*>(p));
}

OCTAVO_INLINE f32x16 load_f16(const uint16_t* p) {
    return join([=](int i) { return widen_f16(p + i * PART_LANES); });
}

OCTAVO_INLINE f32x16 load_bf16(const uint16_t* p) {
    return join([=](int i) { return as<Floats>(widen_u16(p + i * PART_LANES) << 16); });
}

OCTAVO_INLINE i32x16 load_u8(const uint8_t* p) {
    return join([=](int i) { return widen_u8(p + i * PART_LANES); });
}

OCTAVO_INLINE i32x16 load_i8(const uint8_t* p) {
    return join([=](int i) { return widen_i8(p + i * PART_LANES); });
}

template <class T, class Part>
OCTAVO_INLINE void store(T* p, Part x) {
    __builtin_memcpy(p, &x, sizeof x);
}

template <class T, class Half>
OCTAVO_INLINE void store(T* p, Halves<Half> x) {
    store(p, x.low);
    store(p + sizeof(Half) / sizeof(T), x.high);
}

template <class T>
OCTAVO_INLINE void store_bf16(uint16_t* p, Halves<T> x) {
    store_bf16(p, x.low);
    store_bf16(p + sizeof(T) / sizeof(float), x.high);
}

OCTAVO_INLINE void store_i8(int8_t* p, Ints x) {
    store_low_8(p, x);
}

template <class T>
OCTAVO_INLINE void store_i8(int8_t* p, Halves<T> x) {
    store_i8(p, x.low);
    store_i8(p + sizeof(T) / sizeof(int32_t), x.high);
}

// ---- The same in every lane ----

OCTAVO_INLINE f32x16 splat(float x) {
    return join([=](int) { return Floats{} + x; });
}

OCTAVO_INLINE i32x16 splat(int32_t x) {
    return join([=](int) { return Ints{} + x; });
}

OCTAVO_INLINE f32x16 zeros() {
    return splat(0.0f);
}

OCTAVO_INLINE bytes64 splat_byte(uint8_t x) {
    return join([=](int) { return Bytes{} + x; });
}

OCTAVO_INLINE bytes64 splat4(const int8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    return join([=](int) { return as<Bytes>(Ints{} + four); });
}

OCTAVO_INLINE bytes64 splat_pair(const uint16_t* p) {
    return splat4(reinterpret_cast<const int8_t*>(p));
}

// ---- Masks ----

OCTAVO_INLINE lanes first_lanes(int n) {
#if defined(__AVX2__)
    constexpr Ints INDICES = {0, 1, 2, 3, 4, 5, 6, 7};
#else
    constexpr Ints INDICES = {0, 1, 2, 3};
#endif
    return join([=](int i) { return INDICES < Ints{} + (n - i * PART_LANES); });
}

}  // namespace octavo::OCTAVO_ISA
