// The noise of octavo/sampling/noise.py: a function of (seed, position, token) alone; the integers are the
// same.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/simd.h"

namespace octavo::OCTAVO_ISA {

// Output number `index` of the SplitMix64 stream that starts at `state`.
OCTAVO_INLINE uint64_t splitmix64(uint64_t state, uint64_t index) {
    uint64_t bits = state + (index + 1) * 0x9E3779B97F4A7C15;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
    return bits ^ (bits >> 31);
}

// Standard Gumbel noise g from 64 random bits, by way of a uniform number u: g = -log(-log u).
OCTAVO_INLINE double gumbel_noise(uint64_t bits) {
    const double uniform = (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
    return -std::log(-std::log(uniform));
}

// A number that gumbel_noise(bits) doesn't exceed by more than 1e-4 (of rounding) and falls short of by
// little where it matters, without a logarithm.
//
// -log u >= 1 - u, so g <= -log(1 - u) = -ln 2 * log2(1 - u). The upper 24 bits of 1 - u, as an integer c,
// round it down. And a float's bits, as an integer, are 2^23 * (127 + its logarithm), interpolated linearly
// between powers of two, hence never above it.
OCTAVO_INLINE float gumbel_bound(uint64_t bits) {
    constexpr float LN_2 = 0.69314718f;
    const float c = static_cast<float>(static_cast<int32_t>(~bits >> 40));
    int32_t c_bits;
    __builtin_memcpy(&c_bits, &c, sizeof c);
    return LN_2 * (127 + 24) - LN_2 * 0x1p-23f * static_cast<float>(c_bits);
}

}  // namespace octavo::OCTAVO_ISA
