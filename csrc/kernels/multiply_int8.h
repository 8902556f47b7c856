// Products of quants with activations of 8 bits, by the integer dot product.
#pragma once

#include "kernels/multiply.h"
#include "kernels/quants.h"

namespace octavo::OCTAVO_ISA {

// ROWS rows times one panel, quants unpacked in registers. sums[r * stride] on.
template <Format F, int ROWS>
__attribute__((noinline)) void multiply_direct(const uint8_t* panel, const QuantizedRow& x, int64_t k,
                                               float* sums, int stride) {
    using Q = Quants<F>;
    constexpr int SCALES = Q::SCALES_PER_BLOCK;
    constexpr int SCALE_ROWS = BLOCK_ROWS / SCALES;
    const Q quants(panel, k);
    const int64_t num_blocks = k / BLOCK;
    f32x16 sum[ROWS];
    for (int r = 0; r < ROWS; ++r) {
        sum[r] = zeros();
    }
    for (int64_t b = 0; b < num_blocks; ++b) {
        quants.prefetch_block(b, PREFETCH_BYTES);
        bytes64 rows[BLOCK_ROWS];
        quants.read(b, rows);
#pragma GCC unroll 2
        for (int s = 0; s < SCALES; ++s) {
            const f32x16 scale = quants.scale(b * SCALES + s);
            f32x16 minimum = zeros();
            if constexpr (Q::INFO.has_minimum) {
                minimum = quants.minimum(b * SCALES + s);
            }
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; ++r) {
                const int8_t* values = x.values + r * k + b * BLOCK + s * SCALE_ROWS * 4;
                const int64_t block = r * num_blocks + b;
                const int32_t total = SCALES == 1 ? x.sums[block] : x.half_sums[2 * block + s];
                i32x16 dot = splat(-Q::INFO.zero * total);
#pragma GCC unroll 8
                for (int j = 0; j < SCALE_ROWS; ++j) {
                    dot = dot4(dot, rows[s * SCALE_ROWS + j], splat4(values + 4 * j));
                }
                sum[r] = fma(to_f32(dot), scale * splat(x.scales[block]), sum[r]);
                if constexpr (Q::INFO.has_minimum) {
                    const float scaled =
                        SCALES == 1 ? x.scaled_sums[block] : x.scales[block] * static_cast<float>(total);
                    sum[r] = fma(minimum, splat(scaled), sum[r]);
                }
            }
        }
    }
    for (int r = 0; r < ROWS; ++r) {
        store(sums + r * stride, sum[r]);
    }
}

// Two panels unpacked: quants as bytes, scales and minimums as float32, so that what multiplies them is the
// same for all formats.
struct UnpackedPair {
    uint8_t* quants;  // [k / 4][2][64]
    float* scales;    // [k / scale_block][2][16]
    float* minimums;  // the same, where there are minimums

    UnpackedPair(uint8_t* memory, int64_t k)
        : quants(memory),
          scales(reinterpret_cast<float*>(memory + k * 2 * PANEL)),
          minimums(scales + k / 16 * 2 * PANEL) {}

    static int64_t num_bytes(int64_t k) { return k * 2 * PANEL + 2 * (k / 16 * 2 * PANEL * 4); }
};

template <Format F>
__attribute__((noinline)) void unpack(const uint8_t* panel, int64_t k, int which, const UnpackedPair& to) {
    using Q = Quants<F>;
    const Q quants(panel, k);
    for (int64_t b = 0; b < k / BLOCK; ++b) {
        bytes64 rows[BLOCK_ROWS];
        quants.read(b, rows);
#pragma GCC unroll 8
        for (int r = 0; r < BLOCK_ROWS; ++r) {
            store(to.quants + ((b * BLOCK_ROWS + r) * 2 + which) * 64, rows[r]);
        }
        for (int64_t i = b * Q::SCALES_PER_BLOCK; i < (b + 1) * Q::SCALES_PER_BLOCK; ++i) {
            store(to.scales + (i * 2 + which) * PANEL, quants.scale(i));
            if constexpr (Q::INFO.has_minimum) {
                store(to.minimums + (i * 2 + which) * PANEL, quants.minimum(i));
            }
        }
    }
}

// The products of one scale block, and the sums: of ROWS rows times both panels of a pair.
template <int ROWS>
using PairDots = i32x16[ROWS][2];
template <int ROWS>
using PairSums = f32x16[ROWS][2];

// What the zero point takes off the products of scale block `i`; nothing, for weights with a minimum.
template <int SCALES, bool HAS_MINIMUM, int ROWS>
OCTAVO_INLINE void begin_dots(int zero, const QuantizedRow& x, int64_t num_blocks, int64_t i,
                              PairDots<ROWS>& dots) {
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
        if constexpr (HAS_MINIMUM) {
            dots[r][0] = dots[r][1] = splat(0);
        } else {
            const int32_t* totals = SCALES == 1 ? x.sums : x.half_sums;
            dots[r][0] = dots[r][1] = splat(-zero * totals[r * SCALES * num_blocks + i]);
        }
    }
}

// Add the products of a scale block, which `quants` and the rows' `values`, k apart, begin with.
template <int SCALE_ROWS, int ROWS>
OCTAVO_INLINE void add_products(const uint8_t* quants, const int8_t* values, int64_t k,
                                PairDots<ROWS>& dots) {
#pragma GCC unroll 8
    for (int j = 0; j < SCALE_ROWS; ++j) {
        const bytes64 left = load(quants + j * 128), right = load(quants + j * 128 + 64);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            const bytes64 four = splat4(values + r * k + 4 * j);
            dots[r][0] = dot4(dots[r][0], left, four);
            dots[r][1] = dot4(dots[r][1], right, four);
        }
    }
}

// Add the finished products of scale block `i` to the sums, scaled.
template <int SCALES, int ROWS>
OCTAVO_INLINE void add_scaled(const UnpackedPair& pair, const QuantizedRow& x, int64_t num_blocks, int64_t i,
                              const PairDots<ROWS>& dots, PairSums<ROWS>& sums) {
    const f32x16 left = load(pair.scales + i * 2 * PANEL), right = load(pair.scales + (i * 2 + 1) * PANEL);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
        const f32x16 scale = splat(x.scales[r * num_blocks + i / SCALES]);
        sums[r][0] = fma(to_f32(dots[r][0]), left * scale, sums[r][0]);
        sums[r][1] = fma(to_f32(dots[r][1]), right * scale, sums[r][1]);
    }
}

// Add the contribution of the minimums of scale block `i`.
template <int SCALES, int ROWS>
OCTAVO_INLINE void add_minimums(const UnpackedPair& pair, const QuantizedRow& x, int64_t num_blocks,
                                int64_t i, PairSums<ROWS>& sums) {
    const f32x16 left = load(pair.minimums + i * 2 * PANEL);
    const f32x16 right = load(pair.minimums + (i * 2 + 1) * PANEL);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
        const int64_t block = r * num_blocks + i / SCALES;
        const float scaled =
            SCALES == 1 ? x.scaled_sums[block]
                        : x.scales[block] * static_cast<float>(x.half_sums[r * SCALES * num_blocks + i]);
        sums[r][0] = fma(left, splat(scaled), sums[r][0]);
        sums[r][1] = fma(right, splat(scaled), sums[r][1]);
    }
}

// ROWS rows times an unpacked pair. sums[r * stride] on: both panels.
template <int SCALES, bool HAS_MINIMUM, int ROWS>
__attribute__((noinline)) void multiply_unpacked(const UnpackedPair& pair, int zero, const QuantizedRow& x,
                                                 int64_t k, float* sums, int stride) {
    constexpr int INPUTS = BLOCK / SCALES;  // that share a scale
    const int64_t num_blocks = k / BLOCK;
    PairSums<ROWS> sum;
    for (int r = 0; r < ROWS; ++r) {
        sum[r][0] = sum[r][1] = zeros();
    }
    for (int64_t i = 0; i < num_blocks * SCALES; ++i) {
        PairDots<ROWS> dots;
        begin_dots<SCALES, HAS_MINIMUM, ROWS>(zero, x, num_blocks, i, dots);
        add_products<INPUTS / 4, ROWS>(pair.quants + i * INPUTS * 2 * PANEL, x.values + i * INPUTS, k, dots);
        add_scaled<SCALES, ROWS>(pair, x, num_blocks, i, dots, sum);
        if constexpr (HAS_MINIMUM) {
            add_minimums<SCALES, ROWS>(pair, x, num_blocks, i, sum);
        }
    }
    for (int r = 0; r < ROWS; ++r) {
        store(sums + r * stride, sum[r][0]);
        store(sums + r * stride + PANEL, sum[r][1]);
    }
}

}  // namespace octavo::OCTAVO_ISA
