// The products inside a linear map: some rows of activations times a few panels of one format.
//
// multiply.cpp has one function for each format, made of four templates:
//
//   multiply_float.h    F32, F16, BF16: vectors of weights, one broadcast activation
//   multiply_int8.h     quants, for few rows straight from the packed panel, for many unpacked to bytes first
//   multiply_amx.h      BF16, and quants for many rows, with AMX tiles
//
// An output is always the same sum in the same order, whichever of them computes it:
//
//   quants   for each block: sum = fma(exact integer dot product, scale * activation scale, sum), and then,
//            with a minimum, sum = fma(minimum, activation scale * sum of activations, sum)
//   floats   for each k (or pair of k): sum = fma(weight, activation, sum)
#pragma once

#include "kernels/kernels.h"
#include "kernels/rows.h"
#include "kernels/simd.h"

namespace octavo::OCTAVO_ISA {

// AMX multiplies tiles of 16 rows, valid or not: prepared activations are allocated in multiples of 32 rows.
constexpr int ROW_TILE = 16;
constexpr int ROW_PADDING = 2 * ROW_TILE;

// The step's rows as the products read them. A linear map prepares the kinds its formats need.
//
// Rows lie one after the other; or, for AMX, in tiles of ROW_TILE rows, a tile by blocks of 32 inputs:
//
//   values of rows       [rows / 16][k / 32][16][32]
//   scales, sums, ...    [rows / 16][k / 32][16]        half sums [rows / 16][k / 16][16]
struct Activations {
    QuantizedRow quantized;  // of row 0, for quants
    uint16_t* pairs;         // for BF16: padded_k numbers a row
    float* numbers;          // for F32 and F16: k numbers a row
    int64_t k, padded_k;
    bool quants_tiled, pairs_tiled;

    // From `row` on; in tiles, a multiple of ROW_TILE.
    QuantizedRow quantized_rows(int64_t row) const {
        const int64_t blocks = row * (k / 32);
        return {quantized.values + row * k, quantized.scales + blocks, quantized.scaled_sums + blocks,
                quantized.sums + blocks, quantized.half_sums + 2 * blocks};
    }

    // Row `t` of a tile, whose blocks are ROW_TILE apart.
    QuantizedRow quantized_row_in_tile(int64_t t) const {
        const int64_t r = t % ROW_TILE;
        const QuantizedRow tile = quantized_rows(t - r);
        return {tile.values + r * 32, tile.scales + r, tile.scaled_sums + r, tile.sums + r,
                tile.half_sums + r};
    }
};

#if defined(__AVX512F__)
constexpr int UNIT_PANELS = 4;   // panels a thread computes at a time, an even number
constexpr int TILE_ROWS = 6;     // rows x 2 panels of integers and floats: 24 of 32 registers
constexpr int DIRECT_ROWS = 8;   // rows for which quants are unpacked in registers; tiles pay from 12 on
constexpr int FLOAT_PANELS = 4;  // rows x 4 panels of floats: 24 of 32 registers
#else
constexpr int UNIT_PANELS = 2;
constexpr int TILE_ROWS = 2;  // a vector takes two of 16 registers
constexpr int DIRECT_ROWS = 1;
constexpr int FLOAT_PANELS = 2;
#endif

// How far ahead of the weights in use others are fetched, when weights are read at the speed of memory: more
// than a panel of the default model. (Two threads, Q4_1, 576 x 576: 8.1 us with 4096, 4.7 with 8192, more
// beyond 16384.)
constexpr int64_t PREFETCH_BYTES = 8192;

// Panels of one format and one k that are computed together.
struct Unit {
    const uint8_t* panels[UNIT_PANELS];
    int count;
    int64_t first;  // number of the first panel in its matrix (of the gate and of the up panel, if gated)
    const uint8_t* next[UNIT_PANELS];  // the panels that the thread reads next
    int num_next;                      // 0: none
    int64_t next_bytes;                // of each of these
};

// What a thread keeps while it multiplies.
struct Context {
    uint8_t* scratch;    // for unpacked panels
    int tile_shape = 0;  // of the AMX tiles as they are configured now
};

// Takes finished tiles: sums[r][p][16] for `rows` rows from `row` on and the panels of a unit.
class TileSink {
  public:
    virtual void take(int64_t row, int rows, const float* sums) = 0;

  protected:
    ~TileSink() = default;
};

// All rows from `begin` to `end` times all panels of the unit.
using Multiply = void (*)(const Unit&, const Activations&, int64_t begin, int64_t end, Context&, TileSink&);

extern const Multiply MULTIPLY[];

// Bytes of Context::scratch for inputs of size k.
int64_t unpacked_bytes(int64_t k);

constexpr bool reads_quants(Format format) {
    return info(format).low_bits > 0;
}

// Of fewer panels it would compute the last one several times.
constexpr int panels_at_a_time(Format format) {
#if defined(OCTAVO_ISA_amx)
    return reads_quants(format) || format == Format::BF16 ? 2 : FLOAT_PANELS;
#else
    return reads_quants(format) ? 2 : FLOAT_PANELS;
#endif
}

// Split `rows` into the fewest parts of at most `most`, as equal as can be.
struct RowTiles {
    RowTiles(int64_t rows, int most)
        : count((rows + most - 1) / most), size(rows / count), larger(rows % count) {}

    int rows_of(int64_t i) const { return static_cast<int>(size + (i < larger)); }

    int64_t count, size, larger;
};

template <int N>
struct Constant {
    static constexpr int VALUE = N;
};

// Calls `function` with `rows` as a constant, 1 up to MOST.
template <int MOST, class Function>
OCTAVO_INLINE void with_rows(int rows, const Function& function) {
    if constexpr (MOST > 1) {
        if (rows < MOST) {
            with_rows<MOST - 1>(rows, function);
            return;
        }
    }
    function(Constant<MOST>());
}

}  // namespace octavo::OCTAVO_ISA
