// Products with AMX tiles: 16 rows of activations times a panel of 16 outputs at a time.
//
// Integer tiles are exact, so they give the bits that multiply_int8.h gives. BF16 tiles sum in an order of
// their own (TDPBF16PS: even and odd inputs of 32 apart, then together), so on this instruction set every
// BF16 product is made with them, a single row too.
#pragma once

#include "kernels/multiply.h"
#include "kernels/quants.h"
#include "kernels/tiles.h"

#if defined(OCTAVO_ISA_amx)

namespace octavo::OCTAVO_ISA {

// Tiles for `input_bytes` of activations a row: 64 (32 bf16), 32 or 16 (quants that share a scale). 0 to 3
// are sums, 4 and 5 activations, 6 and 7 weights.
OCTAVO_INLINE void configure_tiles(int input_bytes, Context& context) {
    if (context.tile_shape == input_bytes) {
        return;
    }
    TileConfiguration configuration;
    configuration.row_bytes[4] = configuration.row_bytes[5] = static_cast<uint16_t>(input_bytes);
    configuration.num_rows[6] = configuration.num_rows[7] = static_cast<uint8_t>(input_bytes / 4);
    configuration.load();
    context.tile_shape = input_bytes;
}

OCTAVO_INLINE void release_tiles(Context& context) {
    if (context.tile_shape != 0) {
        _tile_release();
        context.tile_shape = 0;
    }
}

// A panel unpacked for tiles: signed bytes with the zero taken off, or, with a minimum, unsigned ones.
struct UnpackedPanel {
    uint8_t* quants;  // [k / 4][64]
    float* scales;    // [k / scale_block][16]
    float* minimums;  // the same, where there are minimums

    UnpackedPanel(uint8_t* memory, int64_t k)
        : quants(memory), scales(reinterpret_cast<float*>(memory + k * PANEL)), minimums(scales + k) {}

    static int64_t num_bytes(int64_t k) { return k * PANEL + 2 * k * 4; }
};

// Unpack block `b` of a panel.
template <class Q>
OCTAVO_INLINE void unpack_for_tiles(const Q& quants, int64_t b, const UnpackedPanel& to) {
    bytes64 rows[BLOCK_ROWS];
    quants.read(b, rows);
#pragma GCC unroll 8
    for (int r = 0; r < BLOCK_ROWS; ++r) {
        store(to.quants + (b * BLOCK_ROWS + r) * 64, rows[r] - splat_byte(Q::INFO.zero));
    }
#pragma GCC unroll 2
    for (int64_t i = b * Q::SCALES_PER_BLOCK; i < (b + 1) * Q::SCALES_PER_BLOCK; ++i) {
        store(to.scales + i * PANEL, quants.scale(i));
        if constexpr (Q::INFO.has_minimum) {
            store(to.minimums + i * PANEL, quants.minimum(i));
        }
    }
}

// Start the integer product of scale block `i` of a tile of rows, in AMX tiles of SLOT (0 or 1), to `dots`.
template <int SCALES, bool HAS_MINIMUM, int SLOT>
OCTAVO_INLINE void issue_tiles(const UnpackedPanel& panel, const QuantizedRow& x, int64_t i,
                               int32_t (&dots)[ROW_TILE][PANEL]) {
    constexpr int INPUTS = BLOCK / SCALES;
    const int8_t* values = x.values + i / SCALES * BLOCK * ROW_TILE + i % SCALES * INPUTS;
    const uint8_t* quants = panel.quants + i * INPUTS * PANEL;
    if constexpr (SLOT == 0) {
        _tile_loadd(4, values, BLOCK);
        _tile_loadd(6, quants, 64);
        _tile_zero(0);
        if constexpr (HAS_MINIMUM) {
            _tile_dpbsud(0, 4, 6);
        } else {
            _tile_dpbssd(0, 4, 6);
        }
        _tile_stored(0, dots, 64);
    } else {
        _tile_loadd(5, values, BLOCK);
        _tile_loadd(7, quants, 64);
        _tile_zero(1);
        if constexpr (HAS_MINIMUM) {
            _tile_dpbsud(1, 5, 7);
        } else {
            _tile_dpbssd(1, 5, 7);
        }
        _tile_stored(1, dots, 64);
    }
}

// Add the integers of scale block `i` to the sums.
template <int SCALES, bool HAS_MINIMUM>
OCTAVO_INLINE void add_dots(const UnpackedPanel& panel, const QuantizedRow& x, int64_t i,
                            const int32_t (&dots)[ROW_TILE][PANEL], f32x16 (&sum)[ROW_TILE]) {
    const int64_t b = i / SCALES;
    const float* scales = x.scales + b * ROW_TILE;
    const f32x16 scale = load(panel.scales + i * PANEL);
    if constexpr (HAS_MINIMUM) {
        const f32x16 minimum = load(panel.minimums + i * PANEL);
        const float* scaled = x.scaled_sums + b * ROW_TILE;
        alignas(64) float scaled_halves[ROW_TILE];
        if constexpr (SCALES > 1) {
            store(scaled_halves, load(scales) * to_f32(load(x.half_sums + i * ROW_TILE)));
            scaled = scaled_halves;
        }
#pragma GCC unroll 16
        for (int r = 0; r < ROW_TILE; ++r) {
            sum[r] = fma(to_f32(load(dots[r])), scale * splat(scales[r]), sum[r]);
            sum[r] = fma(minimum, splat(scaled[r]), sum[r]);
        }
    } else {
#pragma GCC unroll 16
        for (int r = 0; r < ROW_TILE; ++r) {
            sum[r] = fma(to_f32(load(dots[r])), scale * splat(scales[r]), sum[r]);
        }
    }
}

// ROW_TILE rows, in tiles from `x` on, times a panel. sums[r * stride] on. `prepare(block)` is called for
// each block before it is read: the first rows to come unpack it (which between the products costs little:
// 0.8 of the time of 16 rows with panels that are unpacked before), others find it done.
//
// A product takes some hundred cycles from its loads to its integers in memory; while one is under way the
// one before is added to the sums. What limits both is that no vector instruction runs while tiles are moved:
// 12 cycles to load one of rows, 6 for one of weights, 24 to store one of integers, which every scale block
// needs, and about as many again for the sums. (One load of rows for four panels, with the sums in memory:
// 0.85 times as fast.)
template <class Q, class Prepare>
__attribute__((noinline)) void multiply_tiles(const UnpackedPanel& panel, const QuantizedRow& x, int64_t k,
                                              float* sums, int stride, Prepare prepare) {
    constexpr int SCALES = Q::SCALES_PER_BLOCK;
    constexpr bool HAS_MINIMUM = Q::INFO.has_minimum;
    constexpr int LEAD = 2;  // blocks: tiles are loaded slowly from what was stored just before
    alignas(64) int32_t dots[2][ROW_TILE][PANEL];
    f32x16 sum[ROW_TILE];
#pragma GCC unroll 16
    for (int r = 0; r < ROW_TILE; ++r) {
        sum[r] = zeros();
    }
    const int64_t num_blocks = k / BLOCK, count = num_blocks * SCALES;
    const auto prepare_for = [&](int64_t i) {
        if (i % SCALES == 0 && i / SCALES + LEAD < num_blocks) {
            prepare(i / SCALES + LEAD);
        }
    };
    for (int64_t b = 0; b < LEAD && b < num_blocks; ++b) {
        prepare(b);
    }
    issue_tiles<SCALES, HAS_MINIMUM, 0>(panel, x, 0, dots[0]);
    int64_t i = 0;
    for (; i + 2 <= count; i += 2) {
        prepare_for(i);
        issue_tiles<SCALES, HAS_MINIMUM, 1>(panel, x, i + 1, dots[1]);
        add_dots<SCALES, HAS_MINIMUM>(panel, x, i, dots[0], sum);
        prepare_for(i + 1);
        if (i + 2 < count) {
            issue_tiles<SCALES, HAS_MINIMUM, 0>(panel, x, i + 2, dots[0]);
        }
        add_dots<SCALES, HAS_MINIMUM>(panel, x, i + 1, dots[1], sum);
    }
    if (i < count) {
        add_dots<SCALES, HAS_MINIMUM>(panel, x, i, dots[0], sum);
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROW_TILE; ++r) {
        store(sums + r * stride, sum[r]);
    }
}

// 32 rows (16 if not `both`), in tiles from `x` on, times two panels of bf16. sums[r * stride] on: both
// panels. Lines `ahead` bytes after the lines in use are fetched, unless `ahead`
// is 0.
__attribute__((noinline)) inline void multiply_bf16_tiles(const uint8_t* left, const uint8_t* right,
                                                          const uint16_t* x, int64_t padded_k, bool both,
                                                          int64_t ahead, float* sums, int stride) {
    constexpr int INPUTS = 32;
    constexpr int TILE = ROW_TILE * INPUTS;
    const uint16_t* lower = x + ROW_TILE * padded_k;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < padded_k / INPUTS; ++i) {
        if (ahead != 0) {
            for (int line = 0; line < 16; ++line) {
                prefetch_far(left + ahead + line * 64);
                prefetch_far(right + ahead + line * 64);
            }
        }
        _tile_loadd(4, x + i * TILE, 64);
        _tile_loadd(6, left, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, right, 64);
        _tile_dpbf16ps(1, 4, 7);
        if (both) {
            _tile_loadd(5, lower + i * TILE, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        left += INPUTS * PANEL * 2;
        right += INPUTS * PANEL * 2;
    }
    const int64_t row_bytes = stride * 4;
    _tile_stored(0, sums, row_bytes);
    _tile_stored(1, sums + PANEL, row_bytes);
    if (both) {
        _tile_stored(2, sums + ROW_TILE * stride, row_bytes);
        _tile_stored(3, sums + ROW_TILE * stride + PANEL, row_bytes);
    }
}

}  // namespace octavo::OCTAVO_ISA

#endif
