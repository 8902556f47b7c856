// Functions on one row of numbers, for the element-wise kernels and for kernels that fuse their work.
//
// Rows may have any size and need no alignment; each function reads and writes the elements of its row alone.
// The order of every sum depends on the row's size only, so that a row gives the same bits wherever it is
// computed.
#pragma once

#include <cmath>

#include "kernels/simd.h"
#include "program/instructions.h"

namespace octavo::OCTAVO_ISA {

// Steps of at least this many rows are divided by a WorkQueue: an item then takes microseconds, and to take
// it from the queue tens of nanoseconds. (Linear maps, two threads: a queue is 2 to 8 % slower at 1 row and
// costs nothing at 64.)
constexpr int MIN_QUEUE_ROWS = 16;

// The first `count` numbers at p, all lanes' if there are more, and zeros in the rest.
OCTAVO_INLINE f32x16 load_up_to(int64_t count, const float* p) {
    if (count >= LANES) {
        return load(p);
    }
    float padded[LANES] = {};
    if (count > 0) {
        __builtin_memcpy(padded, p, count * sizeof(float));
    }
    return load(padded);
}

OCTAVO_INLINE void store_up_to(int64_t count, float* p, f32x16 x) {
    if (count >= LANES) {
        store(p, x);
        return;
    }
    float padded[LANES];
    store(padded, x);
    if (count > 0) {
        __builtin_memcpy(p, padded, count * sizeof(float));
    }
}

inline float sum_of_squares(const float* x, int64_t size) {
    constexpr int CHAINS = 4;  // as many as the latency of fma, in cycles
    f32x16 sums[CHAINS] = {zeros(), zeros(), zeros(), zeros()};
    int64_t i = 0;
    for (; i + CHAINS * LANES <= size; i += CHAINS * LANES) {
        for (int chain = 0; chain < CHAINS; ++chain) {
            const f32x16 numbers = load(x + i + chain * LANES);
            sums[chain] = fma(numbers, numbers, sums[chain]);
        }
    }
    for (; i < size; i += LANES) {
        const f32x16 numbers = load_up_to(size - i, x + i);
        sums[0] = fma(numbers, numbers, sums[0]);
    }
    return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// x times `scale`.
inline void scale_row(float* x, int64_t size, float scale) {
    for (int64_t i = 0; i < size; i += LANES) {
        store_up_to(size - i, x + i, load_up_to(size - i, x + i) * splat(scale));
    }
}

// out = x / sqrt(mean(x^2) + eps) * weight, plus residual unless that is null. `out` may be `x` or
// `residual`.
inline void norm_row(const float* x, const float* weight, int64_t size, float eps, const float* residual,
                     float* out) {
    const float mean = sum_of_squares(x, size) / static_cast<float>(size);
    const f32x16 factor = splat(1.0f / std::sqrt(mean + eps));
    for (int64_t i = 0; i < size; i += LANES) {
        const int64_t count = size - i;
        const f32x16 y = load_up_to(count, x + i) * factor * load_up_to(count, weight + i);
        store_up_to(count, out + i, residual == nullptr ? y : y + load_up_to(count, residual + i));
    }
}

OCTAVO_INLINE f32x16 activate(Activation activation, f32x16 z) {
    return activation == Activation::gelu_tanh ? gelu_tanh(z) : silu(z);
}

// out = activation(gate) * up. `out` may be `gate` or `up`.
inline void activate_and_mul_row(Activation activation, const float* gate, const float* up, int64_t size,
                                 float* out) {
    for (int64_t i = 0; i < size; i += LANES) {
        const int64_t count = size - i;
        const f32x16 activated = activate(activation, load_up_to(count, gate + i));
        store_up_to(count, out + i, activated * load_up_to(count, up + i));
    }
}

struct Pairs {
    f32x16 first, second;
};

// The 16 pairs of neighbours at p.
OCTAVO_INLINE Pairs load_neighbours(const float* p) {
    // Split as integers, which takes compilers one instruction; floats they would pick up one by one.
    uint64_t pairs[LANES];
    uint32_t lower[LANES], upper[LANES];
    float first[LANES], second[LANES];
    __builtin_memcpy(pairs, p, sizeof(pairs));
    for (int lane = 0; lane < LANES; ++lane) {
        lower[lane] = static_cast<uint32_t>(pairs[lane]);
        upper[lane] = static_cast<uint32_t>(pairs[lane] >> 32);
    }
    __builtin_memcpy(first, lower, sizeof(first));
    __builtin_memcpy(second, upper, sizeof(second));
    return {load(first), load(second)};
}

OCTAVO_INLINE void store_neighbours(float* p, Pairs numbers) {
    float first[LANES], second[LANES], pairs[2 * LANES];
    store(first, numbers.first);
    store(second, numbers.second);
    for (int lane = 0; lane < LANES; ++lane) {
        pairs[2 * lane] = first[lane];
        pairs[2 * lane + 1] = second[lane];
    }
    __builtin_memcpy(p, pairs, sizeof(pairs));
}

// Turn `half` pairs of x: features i and i + half for RopeStyle::half, neighbours for RopeStyle::interleaved.
template <RopeStyle STYLE>
OCTAVO_INLINE void turn_pairs(const float* x, const float* angles, int half, float scale, float* out) {
    const float *cosines = angles, *sines = angles + half;
    const f32x16 factor = splat(scale);
    int i = 0;
    for (; i + LANES <= half; i += LANES) {
        const f32x16 cos = load(cosines + i), sin = load(sines + i);
        if constexpr (STYLE == RopeStyle::half) {
            const f32x16 a = load(x + i), b = load(x + half + i);
            store(out + i, (a * cos - b * sin) * factor);
            store(out + half + i, (b * cos + a * sin) * factor);
        } else {
            const auto [a, b] = load_neighbours(x + 2 * i);
            store_neighbours(out + 2 * i, {(a * cos - b * sin) * factor, (b * cos + a * sin) * factor});
        }
    }
    for (; i < half; ++i) {
        const int first = STYLE == RopeStyle::half ? i : 2 * i;
        const int second = STYLE == RopeStyle::half ? half + i : 2 * i + 1;
        const float a = x[first], b = x[second];
        out[first] = (a * cosines[i] - b * sines[i]) * scale;
        out[second] = (b * cosines[i] + a * sines[i]) * scale;
    }
}

// out = x turned by the angles, times `scale`; features from `rotary_size` on (all, for RopeStyle::none) are
// not turned. `angles`: rotary_size / 2 cosines, then as many sines. `out` may be `x`.
inline void rope_head(const float* x, const float* angles, RopeStyle style, int head_size, int rotary_size,
                      float scale, float* out) {
    if (style == RopeStyle::half) {
        turn_pairs<RopeStyle::half>(x, angles, rotary_size / 2, scale, out);
    } else if (style == RopeStyle::interleaved) {
        turn_pairs<RopeStyle::interleaved>(x, angles, rotary_size / 2, scale, out);
    }
    for (int i = style == RopeStyle::none ? 0 : rotary_size; i < head_size; i += LANES) {
        store_up_to(head_size - i, out + i, load_up_to(head_size - i, x + i) * splat(scale));
    }
}

// A row of k numbers as blocks of 32 bytes with a scale each, and the sums that the zero points and minimums
// of weights are multiplied with. Number i is scales[i / 32] * values[i].
struct QuantizedRow {
    int8_t* values;      // [k], -127 to 127
    float* scales;       // [k / 32]
    float* scaled_sums;  // [k / 32]  scale * sum
    int32_t* sums;       // [k / 32]  of the block's values
    int32_t* half_sums;  // [k / 16]  of 16 values
};

OCTAVO_INLINE float greatest_of_block(const float* x) {
    // min takes its second operand for NaN, so NaN counts as infinity: the maximum is finite if all numbers
    // are.
    const f32x16 infinity = splat(HUGE_VALF);
    return reduce_max(max(min(abs(load(x)), infinity), min(abs(load(x + LANES)), infinity)));
}

// 16 numbers as multiples of a scale, and their sum.
OCTAVO_INLINE int32_t quantize_half(const float* x, f32x16 inverse, int8_t* values) {
    // max takes its second operand for NaN, which no integer stands for.
    const i32x16 nearest = to_i32(max(load(x) * inverse, splat(-127.0f)));
    store_i8(values, nearest);
    return static_cast<int32_t>(reduce_add(to_f32(nearest)));  // exact
}

// Write x [k] as bytes: in each block of 32, scale = max|x| / 127 and values are the nearest multiples of it,
// ties to even. A block with NaN or infinity gets the scale NaN, so that every product with it is
// NaN. Blocks of several rows may be interleaved, with stride `apart`: block b has
// values[32 b * apart], scales[b * apart] and so on, and half_sums[2 b * apart] and [(2 b + 1) * apart].
inline void quantize_row(const float* x, int64_t k, int64_t apart, const QuantizedRow& out) {
    constexpr float LARGEST = 127.0f;
    constexpr float TINY = 0x1p-119f;  // not far below it LARGEST / maximum is infinite; as good as zero
    const int64_t num_blocks = k / 32;
    for (int64_t first = 0; first < num_blocks; first += LANES) {
        const int count = static_cast<int>(smaller<int64_t>(LANES, num_blocks - first));
        float maxima[LANES] = {}, inverses[LANES], scales[LANES];
        for (int i = 0; i < count; ++i) {
            maxima[i] = greatest_of_block(x + (first + i) * 32);
        }
        const f32x16 maximum = load(maxima);
        const auto is_zero = greater(splat(TINY), maximum);
        store(inverses, select(is_zero, zeros(), splat(LARGEST) / maximum));
        const f32x16 scale = maximum / splat(LARGEST) + (maximum - maximum);  // infinity - infinity is NaN
        store(scales, select(is_zero, zeros(), scale));
        for (int i = 0; i < count; ++i) {
            const float* block = x + (first + i) * 32;
            const int64_t to = (first + i) * apart;
            const f32x16 inverse = splat(inverses[i]);
            const int32_t left = quantize_half(block, inverse, out.values + to * 32);
            const int32_t right = quantize_half(block + LANES, inverse, out.values + to * 32 + LANES);
            out.scales[to] = scales[i];
            out.scaled_sums[to] = scales[i] * static_cast<float>(left + right);
            out.sums[to] = left + right;
            out.half_sums[2 * to] = left;
            out.half_sums[2 * to + apart] = right;
        }
    }
}

// Write x [k] as bf16, to nearest, ties to even, and zeros up to `padded`, a multiple of 16.
inline void round_row(const float* x, int64_t k, int64_t padded, uint16_t* out) {
    for (int64_t i = 0; i < padded; i += LANES) {
        store_bf16(out + i, load_up_to(k - i, x + i));
    }
}

}  // namespace octavo::OCTAVO_ISA
