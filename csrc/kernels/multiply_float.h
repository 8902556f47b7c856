// Products of plain numbers: F32 and F16 with float32 activations, BF16 with activations rounded to bf16.
#pragma once

#include "kernels/multiply.h"

namespace octavo::OCTAVO_ISA {

// How a format's panel is read: one vector for each step of `INPUTS` inputs, times one activation (or pair).
template <Format F>
struct FloatSteps;

template <>
struct FloatSteps<Format::F32> {
    static constexpr int VECTOR_BYTES = 64;
    using Number = float;

    static OCTAVO_INLINE f32x16 read(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }

    static OCTAVO_INLINE f32x16 broadcast(const float* x, int64_t step) { return splat(x[step]); }

    static OCTAVO_INLINE f32x16 add(f32x16 sum, f32x16 weights, f32x16 x) { return fma(weights, x, sum); }

    static const float* row(const Activations& x, int64_t row) { return x.numbers + row * x.k; }

    static int64_t num_steps(int64_t k) { return k; }
};

template <>
struct FloatSteps<Format::F16> : FloatSteps<Format::F32> {
    static constexpr int VECTOR_BYTES = 32;

    static OCTAVO_INLINE f32x16 read(const uint8_t* p) {
        return load_f16(reinterpret_cast<const uint16_t*>(p));
    }
};

template <>
struct FloatSteps<Format::BF16> {
    static constexpr int VECTOR_BYTES = 64;
    using Number = uint16_t;

    static OCTAVO_INLINE bytes64 read(const uint8_t* p) {
        return load_pairs(reinterpret_cast<const uint16_t*>(p));
    }

    static OCTAVO_INLINE bytes64 broadcast(const uint16_t* x, int64_t step) {
        return splat_pair(x + 2 * step);
    }

    static OCTAVO_INLINE f32x16 add(f32x16 sum, bytes64 weights, bytes64 x) {
        return dot_pairs(sum, weights, x);
    }

    static const uint16_t* row(const Activations& x, int64_t row) { return x.pairs + row * x.padded_k; }

    static int64_t num_steps(int64_t k) { return round_up(k, 32) / 2; }
};

// ROWS rows, `row_stride` apart, times FLOAT_PANELS panels. sums[r * stride] on.
template <Format F, int ROWS>
__attribute__((noinline)) void multiply_floats(const uint8_t* const* panels,
                                               const typename FloatSteps<F>::Number* x, int64_t row_stride,
                                               int64_t num_steps, float* sums, int stride) {
    using Steps = FloatSteps<F>;
    f32x16 sum[ROWS][FLOAT_PANELS];
    const uint8_t* weights[FLOAT_PANELS];
    for (int p = 0; p < FLOAT_PANELS; ++p) {
        weights[p] = panels[p];
        for (int r = 0; r < ROWS; ++r) {
            sum[r][p] = zeros();
        }
    }
    for (int64_t step = 0; step < num_steps; ++step) {
        decltype(Steps::read(nullptr)) vectors[FLOAT_PANELS];
#pragma GCC unroll 4
        for (int p = 0; p < FLOAT_PANELS; ++p) {
            vectors[p] = Steps::read(weights[p] + step * Steps::VECTOR_BYTES);
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            const auto activation = Steps::broadcast(x + r * row_stride, step);
#pragma GCC unroll 4
            for (int p = 0; p < FLOAT_PANELS; ++p) {
                sum[r][p] = Steps::add(sum[r][p], vectors[p], activation);
            }
        }
    }
    for (int r = 0; r < ROWS; ++r) {
        for (int p = 0; p < FLOAT_PANELS; ++p) {
            store(sums + r * stride + p * PANEL, sum[r][p]);
        }
    }
}

}  // namespace octavo::OCTAVO_ISA
