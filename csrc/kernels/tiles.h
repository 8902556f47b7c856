// The shapes of AMX tiles, as ldtilecfg takes them.
#pragma once

#include "kernels/simd.h"

#if defined(__AMX_TILE__)

namespace octavo::OCTAVO_ISA {

// The operand of ldtilecfg (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, 18.1).
// Eight whole tiles of 16 rows of 64 bytes, unless it is changed.
struct alignas(64) TileConfiguration {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t num_rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};

    OCTAVO_INLINE void load() const {
        // GCC 12 thinks that _tile_loadconfig reads the first 8 bytes alone, and would not write the others.
        asm volatile("" ::"m"(*this));
        _tile_loadconfig(this);
    }
};

// Store the sums of two tiles of rows times two of columns, tiles 0 and 1 above 2 and 3, to out[row *
// stride].
OCTAVO_INLINE void store_sums(float* out, int64_t stride, bool has_lower, bool has_right) {
    const int64_t row_bytes = stride * 4;
    _tile_stored(0, out, row_bytes);
    if (has_right) {
        _tile_stored(1, out + LANES, row_bytes);
    }
    if (has_lower) {
        _tile_stored(2, out + LANES * stride, row_bytes);
    }
    if (has_lower && has_right) {
        _tile_stored(3, out + LANES * stride + LANES, row_bytes);
    }
}

}  // namespace octavo::OCTAVO_ISA

#endif
