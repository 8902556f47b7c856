// How weights lie in memory once they are packed. The bytes are the file's, in another order.
//
// A matrix [N, K] (out, in) is cut into panels of 16 outputs, because a vector has 16 lanes and a lane is an
// output: no linear map ever adds across lanes. The last panel is filled up with zero rows. Within a panel k
// runs on, and what 16 outputs need for the next few k lies together.
//
//   F32, F16     [K][16]
//   BF16         [K' / 2][16][2]      pairs of k, K' = K rounded up to 32 and filled up with zeros
//   all others   low plane, high plane, scales, super scales, one after the other, each for the whole of K
//
// Planes. A quant is an unsigned number of LOW + HIGH bits; its low bits lie in the low plane, its high bits
// in the high plane (for formats that have one). Take the quants as rows r = k / 4 of 64 bytes: byte [c][i]
// of row r is the quant of output c and k = 4 r + i, as the dot product instructions take it. A plane of b
// bits keeps 8 / b such rows in one vector of 64 bytes: row r is in vector r / (8 / b), shifted left by b *
// (r % (8 / b)).
//
//   b = 4:   vector 0 = row 0 | row 1 << 4     vector 1 = row 2 | row 3 << 4    ...
//
// Scales. Formats with blocks of 32: [K / 32][d[16]] or [K / 32][d[16], m[16]], float16. Formats with
// super-blocks of 256: the small scales as the file has them, byte by byte, [K / 256][bytes][16], then the
// super scales [K / 256][d[16]] or [K / 256][d[16], dmin[16]], float16.
#pragma once

#include <cstdint>

#include "platform/round_up.h"

namespace octavo {

enum class Format { F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL };

constexpr int PANEL = 16;  // outputs

struct FormatInfo {
    const char* name;
    int quant_block;        // weights that the file keeps together with their scales
    int quant_block_bytes;  // of the file
    int low_bits;           // of a quant; 0 for formats of plain numbers
    int high_bits;
    int zero;               // the quant that stands for 0
    int scale_block;        // elements that share a scale: 16 or 32
    bool has_minimum;       // weight = scale * quant + minimum, otherwise scale * (quant - zero)
    int small_scale_bytes;  // bytes of small scales in a super-block; 0 for blocks of 32
};

// In the order of `Format`.
constexpr FormatInfo FORMATS[] = {
    {"F32", 1, 4, 0, 0, 0, 0, false, 0},         {"F16", 1, 2, 0, 0, 0, 0, false, 0},
    {"BF16", 1, 2, 0, 0, 0, 0, false, 0},        {"Q4_0", 32, 18, 4, 0, 8, 32, false, 0},
    {"Q4_1", 32, 20, 4, 0, 0, 32, true, 0},      {"Q5_0", 32, 22, 4, 1, 16, 32, false, 0},
    {"Q5_1", 32, 24, 4, 1, 0, 32, true, 0},      {"Q8_0", 32, 34, 8, 0, 128, 32, false, 0},
    {"Q2_K", 256, 84, 2, 0, 0, 16, true, 16},    {"Q3_K", 256, 110, 2, 1, 4, 16, false, 12},
    {"Q4_K", 256, 144, 4, 0, 0, 32, true, 12},   {"Q5_K", 256, 176, 4, 1, 0, 32, true, 12},
    {"Q6_K", 256, 210, 4, 2, 32, 16, false, 16}, {"IQ4_NL", 32, 18, 4, 0, 128, 32, false, 0},
};

constexpr int NUM_FORMATS = sizeof(FORMATS) / sizeof(*FORMATS);

OCTAVO_INLINE constexpr const FormatInfo& info(Format format) {
    return FORMATS[static_cast<int>(format)];
}

// Quants of IQ4_NL are indices into this table of unevenly spaced values (kvalues_iq4nl in ggml), here + 128.
constexpr uint8_t IQ4_NL_VALUES[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                       129, 141, 153, 166, 181, 197, 217, 241};

// Where the sections of a panel of `k` inputs begin, in bytes from the panel's start.
struct PanelLayout {
    int64_t high, scales, super_scales, num_bytes;
};

OCTAVO_INLINE constexpr PanelLayout panel_layout(Format format, int64_t k) {
    const FormatInfo& f = info(format);
    if (format == Format::F32)
        return {0, 0, 0, k * PANEL * 4};
    if (format == Format::F16)
        return {0, 0, 0, round_up(k * PANEL * 2, 64)};
    if (format == Format::BF16)
        return {0, 0, 0, round_up(k, 32) * PANEL * 2};
    const int64_t high = k * PANEL * f.low_bits / 8;
    const int64_t scales = high + k * PANEL * f.high_bits / 8;
    const int64_t block_scales = PANEL * 2 * (f.has_minimum ? 2 : 1);
    if (f.small_scale_bytes == 0)
        return {high, scales, scales, round_up(scales + k / 32 * block_scales, 64)};
    const int64_t super_scales = scales + k / 256 * f.small_scale_bytes * PANEL;
    return {high, scales, super_scales, round_up(super_scales + k / 256 * block_scales, 64)};
}

}  // namespace octavo
