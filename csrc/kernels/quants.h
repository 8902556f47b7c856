// Reading a packed panel of quants (formats.h): 32 inputs of 16 outputs at a time, and their scales.
//
// This is all that the kernels know of a quantized format. A new format is a row in formats.h, a decoder in
// program/packing.cpp and, if its scales are of a new kind, a pair of functions here.
#pragma once

#include "kernels/formats.h"
#include "kernels/simd.h"

namespace octavo::OCTAVO_ISA {

constexpr int BLOCK = 32;              // inputs that share an activation scale, and that are read at a time
constexpr int BLOCK_ROWS = BLOCK / 4;  // vectors of four inputs of 16 outputs

template <Format F>
class Quants {
  public:
    static constexpr FormatInfo INFO = FORMATS[static_cast<int>(F)];
    static constexpr int SCALES_PER_BLOCK = BLOCK / INFO.scale_block;  // 1 or 2

    Quants(const uint8_t* panel, int64_t k) : low_(panel) {
        const PanelLayout layout = panel_layout(F, k);
        high_ = panel + layout.high;
        scales_ = panel + layout.scales;
        super_scales_ = panel + layout.super_scales;
    }

    // The quants of block `b`, unsigned: rows[r] has inputs 32 b + 4 r up to 32 b + 4 r + 3.
    OCTAVO_INLINE void read(int64_t b, bytes64 (&rows)[BLOCK_ROWS]) const {
        Reader<0>::read(low_ + b * PLANE_BYTES * INFO.low_bits, high_ + b * PLANE_BYTES * INFO.high_bits,
                        rows);
    }

    OCTAVO_INLINE void prefetch_block(int64_t b, int64_t distance) const {
        const uint8_t* low = low_ + b * PLANE_BYTES * INFO.low_bits + distance;
        for (int i = 0; i < INFO.low_bits; ++i) {
            prefetch(low + i * PLANE_BYTES);
        }
        const uint8_t* high = high_ + b * PLANE_BYTES * INFO.high_bits + distance;
        for (int i = 0; i < INFO.high_bits; ++i) {
            prefetch(high + i * PLANE_BYTES);
        }
        if constexpr (INFO.small_scale_bytes == 0) {
            prefetch(scales_ + b * BLOCK_SCALE_BYTES + distance);
        }
    }

    // The scale of 16 outputs for inputs from `i * scale_block` on.
    OCTAVO_INLINE f32x16 scale(int64_t i) const {
        if constexpr (INFO.small_scale_bytes == 0) {
            return load_f16(half(scales_ + i * BLOCK_SCALE_BYTES));
        } else {
            return to_f32(small_scale(i)) * load_f16(half(super_scales_ + i / SCALES * BLOCK_SCALE_BYTES));
        }
    }

    // What is added to scale * quant, for the formats that have a minimum.
    OCTAVO_INLINE f32x16 minimum(int64_t i) const {
        static_assert(INFO.has_minimum);
        if constexpr (INFO.small_scale_bytes == 0) {
            return load_f16(half(scales_ + i * BLOCK_SCALE_BYTES) + PANEL);
        } else {
            const f32x16 d = load_f16(half(super_scales_ + i / SCALES * BLOCK_SCALE_BYTES) + PANEL);
            return to_f32(small_minimum(i)) * (zeros() - d);
        }
    }

  private:
    static constexpr int PLANE_BYTES = BLOCK * PANEL / 8;  // of one bit of a block
    static constexpr int BLOCK_SCALE_BYTES = PANEL * 2 * (INFO.has_minimum ? 2 : 1);
    static constexpr int SCALES = 256 / (INFO.scale_block ? INFO.scale_block : 1);  // of a super-block

    static const uint16_t* half(const uint8_t* p) { return reinterpret_cast<const uint16_t*>(p); }

    // Field R of a plane of BITS bits, moved up by UP bits.
    template <int BITS, int R, int UP>
    static OCTAVO_INLINE bytes64 field(const uint8_t* plane) {
        constexpr int PER_VECTOR = 8 / BITS;
        constexpr int DOWN = BITS * (R % PER_VECTOR) - UP;
        const bytes64 vector = load(plane + R / PER_VECTOR * 64);
        const bytes64 mask = splat_byte(static_cast<uint8_t>(((1 << BITS) - 1) << UP));
        if constexpr (BITS == 8) {
            return vector;
        } else if constexpr (DOWN > 0) {
            return shift_right<DOWN>(vector) & mask;
        } else if constexpr (DOWN < 0) {
            return shift_left<-DOWN>(vector) & mask;
        } else {
            return vector & mask;
        }
    }

    // Row R and the rows after it.
    template <int R, class = void>
    struct Reader {
        static OCTAVO_INLINE void read(const uint8_t* low, const uint8_t* high, bytes64 (&rows)[BLOCK_ROWS]) {
            bytes64 quants = field<INFO.low_bits, R, 0>(low);
            if constexpr (INFO.high_bits > 0) {
                quants = quants | field<INFO.high_bits, R, INFO.low_bits>(high);
            }
            if constexpr (F == Format::IQ4_NL) {
                quants = lookup(IQ4_NL_VALUES, quants);
            }
            rows[R] = quants;
            Reader<R + 1>::read(low, high, rows);
        }
    };

    template <class Void>
    struct Reader<BLOCK_ROWS, Void> {
        static OCTAVO_INLINE void read(const uint8_t*, const uint8_t*, bytes64 (&)[BLOCK_ROWS]) {}
    };

    // The small integer scales of super-blocks; octavo/weights/dequantize.py defines the order of their bits.
    OCTAVO_INLINE const uint8_t* small_scales(int64_t i) const {
        return scales_ + i / SCALES * INFO.small_scale_bytes * PANEL;
    }

    OCTAVO_INLINE i32x16 small_scale(int64_t i) const {
        const uint8_t* bytes = small_scales(i);
        const int j = static_cast<int>(i % SCALES);
        if constexpr (F == Format::Q2_K) {
            return load_u8(bytes + j * PANEL) & splat(15);
        } else if constexpr (F == Format::Q3_K) {
            const i32x16 low = shift_right(load_u8(bytes + j % 8 * PANEL), j / 8 * 4) & splat(15);
            const i32x16 high = shift_right(load_u8(bytes + (8 + j % 4) * PANEL), j / 4 * 2) & splat(3);
            return (low | shift_left(high, 4)) - splat(32);
        } else if constexpr (F == Format::Q6_K) {
            return load_i8(bytes + j * PANEL);
        } else {
            return six_bits(bytes, j, 0);
        }
    }

    OCTAVO_INLINE i32x16 small_minimum(int64_t i) const {
        const uint8_t* bytes = small_scales(i);
        const int j = static_cast<int>(i % SCALES);
        if constexpr (F == Format::Q2_K) {
            return shift_right(load_u8(bytes + j * PANEL), 4);
        } else {
            return six_bits(bytes, j, 4);
        }
    }

    // Number j of the eight 6-bit scales (`first` 0) or minimums (`first` 4) of Q4_K and Q5_K.
    static OCTAVO_INLINE i32x16 six_bits(const uint8_t* bytes, int j, int first) {
        if (j < 4) {
            return load_u8(bytes + (first + j) * PANEL) & splat(63);
        }
        const i32x16 low = shift_right(load_u8(bytes + (4 + j) * PANEL), first) & splat(15);
        const i32x16 high = shift_right(load_u8(bytes + (first + j - 4) * PANEL), 6);
        return low | shift_left(high, 4);
    }

    const uint8_t* low_;
    const uint8_t* high_;
    const uint8_t* scales_;
    const uint8_t* super_scales_;
};

}  // namespace octavo::OCTAVO_ISA
