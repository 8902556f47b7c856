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

}  // namespace octavo::OCTAVO_ISA

#endif
