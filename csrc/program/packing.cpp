// Blocks of files are laid out as ggml lays them out (ggml-common.h): BLOCKS says where their fields are, and
// every format is decoded by the same few templates. The code is compiled for the baseline of the
// architecture: plain loops over whole tiles, which compilers turn into vectors.
#include "program/packing.h"

#include <algorithm>
#include <cstring>

namespace octavo {

namespace {

// Fields of `bits` each. Bytes come in groups of `width`, and a group holds the lowest fields of each of its
// bytes, then the next higher ones, and so on:
//
//   width 2, bits 4:   bytes [a1 a0] [b1 b0]   hold   a0 b0 a1 b1
struct Fields {
    int offset, bits, width;
};

// Offsets of the parts of a block, in bytes. Parts that a format lacks are not looked at.
struct BlockLayout {
    Fields low, high;  // of the quants
    int scale, minimum, small_scales;
};

// In the order of `Format`.
constexpr BlockLayout BLOCKS[] = {
    {},                                       // F32
    {},                                       // F16
    {},                                       // BF16
    {{2, 4, 16}, {}, 0, 0, 0},                // Q4_0
    {{4, 4, 16}, {}, 0, 2, 0},                // Q4_1
    {{6, 4, 16}, {2, 1, 1}, 0, 0, 0},         // Q5_0
    {{8, 4, 16}, {4, 1, 1}, 0, 2, 0},         // Q5_1
    {{2, 8, 32}, {}, 0, 0, 0},                // Q8_0
    {{16, 2, 32}, {}, 80, 82, 0},             // Q2_K
    {{32, 2, 32}, {0, 1, 32}, 108, 0, 96},    // Q3_K
    {{16, 4, 32}, {}, 0, 2, 4},               // Q4_K
    {{48, 4, 32}, {16, 1, 32}, 0, 2, 4},      // Q5_K
    {{0, 4, 64}, {128, 2, 32}, 208, 0, 192},  // Q6_K
    {{2, 4, 16}, {}, 0, 0, 0},                // IQ4_NL
};
static_assert(sizeof(BLOCKS) / sizeof(*BLOCKS) == NUM_FORMATS, "one for each format");

template <class T>
T read(const uint8_t* from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
}

template <class To, class From>
To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(To));
    return to;
}

// IEEE 754 binary16 to binary32. In arithmetic only, without branches, so that loops of it become vectors.
float half_to_float(uint16_t half) {
    const int sign = half >> 15, exponent = half >> 10 & 31, mantissa = half & 1023;
    const int is_denormal = exponent == 0, is_special = exponent == 31;  // special: infinity or NaN
    const int wide_exponent = exponent + (127 - 15) * (1 + is_special) + is_denormal;
    const float with_leading_one = bits_as<float>(wide_exponent << 23 | mantissa << 13);
    const float magnitude = with_leading_one - static_cast<float>(is_denormal) * 0x1p-14f;
    return bits_as<float>(bits_as<uint32_t>(magnitude) | static_cast<uint32_t>(sign) << 31);
}

// Decoding one block.

template <int BITS, int WIDTH, int COUNT>
void unpack(const uint8_t* packed, uint8_t (&fields)[COUNT]) {
    constexpr int PER_BYTE = 8 / BITS, MASK = (1 << BITS) - 1;
    for (int group = 0; group < COUNT / PER_BYTE / WIDTH; ++group) {
        uint8_t* of_group = fields + group * WIDTH * PER_BYTE;
        for (int i = 0; i < PER_BYTE; ++i) {
            for (int j = 0; j < WIDTH; ++j) {
                of_group[i * WIDTH + j] = packed[group * WIDTH + j] >> (i * BITS) & MASK;
            }
        }
    }
}

template <Format FORMAT>
using Quants = uint8_t[info(FORMAT).quant_block];

// The quants of a block in the order of k, as unsigned numbers.
template <Format FORMAT>
void unpack_quants(const uint8_t* block, Quants<FORMAT>& quants) {
    constexpr BlockLayout LAYOUT = BLOCKS[static_cast<int>(FORMAT)];
    unpack<LAYOUT.low.bits, LAYOUT.low.width>(block + LAYOUT.low.offset, quants);
    if constexpr (LAYOUT.high.bits > 0) {
        Quants<FORMAT> high;
        unpack<LAYOUT.high.bits, LAYOUT.high.width>(block + LAYOUT.high.offset, high);
        for (int i = 0; i < info(FORMAT).quant_block; ++i) {
            quants[i] |= high[i] << LAYOUT.low.bits;
        }
    }
    if constexpr (FORMAT == Format::Q8_0) {
        for (uint8_t& quant : quants) {
            quant ^= 0x80;  // from two's complement to quant - 128
        }
    }
}

struct SmallScales {
    int scales[16], minimums[16];
};

// The integers that scale each sub-block of a super-block of 256.
template <Format FORMAT>
SmallScales unpack_small_scales(const uint8_t* bytes) {
    SmallScales small = {};
    if constexpr (FORMAT == Format::Q2_K) {
        for (int i = 0; i < 16; ++i) {
            small.scales[i] = bytes[i] & 15;
            small.minimums[i] = bytes[i] >> 4;
        }
    } else if constexpr (FORMAT == Format::Q3_K) {
        uint8_t low[16], high[16];
        unpack<4, 8>(bytes, low);
        unpack<2, 4>(bytes + 8, high);
        for (int i = 0; i < 16; ++i) {
            small.scales[i] = (low[i] | high[i] << 4) - 32;
        }
    } else if constexpr (FORMAT == Format::Q6_K) {
        for (int i = 0; i < 16; ++i) {
            small.scales[i] = static_cast<int8_t>(bytes[i]);
        }
    } else {
        // Q4_K and Q5_K: eight scales S and eight minimums M of 6 bits.
        //   byte i  S[i+4] 5:4 | S[i]    byte 4+i  M[i+4] 5:4 | M[i]    byte 8+i  M[i+4] 3:0 | S[i+4] 3:0
        for (int i = 0; i < 4; ++i) {
            small.scales[i] = bytes[i] & 63;
            small.minimums[i] = bytes[4 + i] & 63;
            small.scales[4 + i] = bytes[i] >> 6 << 4 | (bytes[8 + i] & 15);
            small.minimums[4 + i] = bytes[4 + i] >> 6 << 4 | bytes[8 + i] >> 4;
        }
    }
    return small;
}

// Scale and minimum of each sub-block (of 16 or 32 elements), as factors of quants and as what is added.
struct Scales {
    float scales[16], minimums[16];
};

template <Format FORMAT>
Scales unpack_scales(const uint8_t* block) {
    constexpr FormatInfo INFO = info(FORMAT);
    constexpr BlockLayout LAYOUT = BLOCKS[static_cast<int>(FORMAT)];
    const float scale = half_to_float(read<uint16_t>(block + LAYOUT.scale));
    const float minimum = INFO.has_minimum ? half_to_float(read<uint16_t>(block + LAYOUT.minimum)) : 0.0f;
    Scales result;
    if constexpr (INFO.small_scale_bytes == 0) {
        result.scales[0] = scale;
        result.minimums[0] = minimum;
    } else {
        const SmallScales small = unpack_small_scales<FORMAT>(block + LAYOUT.small_scales);
        for (int i = 0; i < INFO.quant_block / INFO.scale_block; ++i) {
            result.scales[i] = scale * static_cast<float>(small.scales[i]);
            result.minimums[i] = -(minimum * static_cast<float>(small.minimums[i]));
        }
    }
    return result;
}

template <Format FORMAT>
void dequantize_block(const uint8_t* block, float* out) {
    constexpr FormatInfo INFO = info(FORMAT);
    Quants<FORMAT> quants;
    unpack_quants<FORMAT>(block, quants);
    const Scales scales = unpack_scales<FORMAT>(block);
    for (int s = 0; s < INFO.quant_block / INFO.scale_block; ++s) {
        for (int i = s * INFO.scale_block; i < (s + 1) * INFO.scale_block; ++i) {
            const int quant = (FORMAT == Format::IQ4_NL ? IQ4_NL_VALUES[quants[i]] : quants[i]) - INFO.zero;
            const float product = scales.scales[s] * static_cast<float>(quant);
            out[i] = INFO.has_minimum ? product + scales.minimums[s] : product;
        }
    }
}

template <Format FORMAT>
void dequantize(const uint8_t* row, int64_t k, float* out) {
    constexpr FormatInfo INFO = info(FORMAT);
    for (int64_t i = 0; i < k; i += INFO.quant_block) {
        const uint8_t* block = row + i / INFO.quant_block * INFO.quant_block_bytes;
        if constexpr (FORMAT == Format::F32) {
            out[i] = read<float>(block);
        } else if constexpr (FORMAT == Format::F16) {
            out[i] = half_to_float(read<uint16_t>(block));
        } else if constexpr (FORMAT == Format::BF16) {
            out[i] = bits_as<float>(static_cast<uint32_t>(read<uint16_t>(block)) << 16);
        } else {
            dequantize_block<FORMAT>(block, out + i);
        }
    }
}

// Packing one panel.

// Up to 16 rows of a file that become a panel.
struct Rows {
    const uint8_t* first;
    int64_t num_bytes;  // of each
    int count;          // the rest of the panel is filled up

    const uint8_t* operator[](int c) const { return first + c * num_bytes; }
};

// Of a row: 8 words of 4 quants, the largest piece that all quantized formats have in common.
constexpr int TILE_BYTES = 32;

// out[i][c] = element i of row c, for the first `count` elements of rows `stride` bytes apart.
template <class Element>
void transpose(const uint8_t* rows, int64_t stride, int count, Element (*out)[PANEL]) {
    for (int i = 0; i < count; ++i) {
        for (int c = 0; c < PANEL; ++c) {
            out[i][c] = read<Element>(rows + c * stride + i * sizeof(Element));
        }
    }
}

// Write `num_written` bytes for each row to a panel of plain numbers: the row's `num_bytes` from `offset` on,
// then zeros.
template <class Element>
void pack_tile(const Rows& rows, int64_t offset, int64_t num_bytes, int64_t num_written, uint8_t* panel) {
    uint8_t tile[PANEL][TILE_BYTES] = {};
    for (int c = 0; c < rows.count; ++c) {
        std::memcpy(tile[c], rows[c] + offset, num_bytes);
    }
    Element words[TILE_BYTES / sizeof(Element)][PANEL];
    transpose(tile[0], TILE_BYTES, TILE_BYTES / sizeof(Element), words);
    std::memcpy(panel + offset * PANEL, words, num_written * PANEL);
}

// Panels of plain numbers: [K'][16] of `Element`, which for bf16 is two numbers.
template <Format FORMAT, class Element>
void pack_plain(const Rows& rows, int64_t k, uint8_t* panel) {
    const int64_t padded_bytes = panel_layout(FORMAT, k).num_bytes / PANEL;
    int64_t offset = 0;
    for (; offset + TILE_BYTES <= rows.num_bytes; offset += TILE_BYTES) {
        pack_tile<Element>(rows, offset, TILE_BYTES, TILE_BYTES, panel);
    }
    for (; offset < padded_bytes; offset += TILE_BYTES) {
        const int64_t num_left = std::max<int64_t>(rows.num_bytes - offset, 0);
        pack_tile<Element>(rows, offset, num_left, std::min<int64_t>(padded_bytes - offset, TILE_BYTES),
                           panel);
    }
}

// Write the bits SHIFT and up of 32 quants of each output, 8 rows of 4, as BITS vectors of a plane.
template <int BITS, int SHIFT>
void write_plane(const uint32_t (&words)[8][PANEL], uint8_t* plane) {
    constexpr int PER_VECTOR = 8 / BITS;
    constexpr uint32_t MASK = 0x01010101u * ((1 << BITS) - 1);  // the same field of four quants
    for (int v = 0; v < BITS; ++v) {
        uint32_t vector[PANEL] = {};
        for (int i = 0; i < PER_VECTOR; ++i) {
            for (int c = 0; c < PANEL; ++c) {
                vector[c] |= (words[v * PER_VECTOR + i][c] >> SHIFT & MASK) << (BITS * i);
            }
        }
        std::memcpy(plane + v * sizeof(vector), vector, sizeof(vector));
    }
}

// Write a block's quants of all outputs to the planes. `index`: which block of the panel.
template <Format FORMAT>
void write_quants(const Quants<FORMAT> (&quants)[PANEL], int64_t index, uint8_t* low_plane,
                  uint8_t* high_plane) {
    constexpr FormatInfo INFO = info(FORMAT);
    constexpr int TILES = INFO.quant_block / TILE_BYTES;
    for (int t = 0; t < TILES; ++t) {
        uint32_t words[8][PANEL];
        transpose(quants[0] + t * TILE_BYTES, INFO.quant_block, 8, words);
        const int64_t vectors = index * TILES + t;
        write_plane<INFO.low_bits, 0>(words, low_plane + vectors * INFO.low_bits * 64);
        if constexpr (INFO.high_bits > 0) {
            write_plane<INFO.high_bits, INFO.low_bits>(words, high_plane + vectors * INFO.high_bits * 64);
        }
    }
}

template <Format FORMAT>
void pack_quantized(const Rows& rows, int64_t k, uint8_t* panel) {
    constexpr FormatInfo INFO = info(FORMAT);
    constexpr BlockLayout LAYOUT = BLOCKS[static_cast<int>(FORMAT)];
    const PanelLayout sections = panel_layout(FORMAT, k);
    uint8_t* small_scales = panel + sections.scales;
    uint8_t* scales = panel + sections.super_scales;  // blocks of 32 have no others: they are at `scales`
    // These already hold the padding of the panel; blocks of the file overwrite only their own rows.
    Quants<FORMAT> quants[PANEL];
    std::memset(quants, INFO.zero, sizeof(quants));
    uint8_t small[INFO.small_scale_bytes + 1][PANEL] = {};  // one more, since an array cannot have none
    uint16_t halves[2][PANEL] = {};                         // scales, minimums
    constexpr int HALVES_BYTES = sizeof(halves) / (INFO.has_minimum ? 1 : 2);

    for (int64_t b = 0; b < k / INFO.quant_block; ++b) {
        for (int c = 0; c < rows.count; ++c) {
            const uint8_t* block = rows[c] + b * INFO.quant_block_bytes;
            unpack_quants<FORMAT>(block, quants[c]);
            halves[0][c] = read<uint16_t>(block + LAYOUT.scale);
            halves[1][c] = read<uint16_t>(block + LAYOUT.minimum);
            for (int i = 0; i < INFO.small_scale_bytes; ++i) {
                small[i][c] = block[LAYOUT.small_scales + i];
            }
        }
        write_quants<FORMAT>(quants, b, panel, panel + sections.high);
        std::memcpy(small_scales + b * INFO.small_scale_bytes * PANEL, small, INFO.small_scale_bytes * PANEL);
        std::memcpy(scales + b * HALVES_BYTES, halves, HALVES_BYTES);
    }
}

struct Codec {
    void (*dequantize)(const uint8_t* row, int64_t k, float* out);
    void (*pack)(const Rows& rows, int64_t k, uint8_t* panel);
};

template <Format FORMAT>
constexpr Codec QUANTIZED = {dequantize<FORMAT>, pack_quantized<FORMAT>};

template <Format FORMAT, class Element>
constexpr Codec PLAIN = {dequantize<FORMAT>, pack_plain<FORMAT, Element>};

// In the order of `Format`.
constexpr Codec CODECS[] = {
    PLAIN<Format::F32, uint32_t>, PLAIN<Format::F16, uint16_t>, PLAIN<Format::BF16, uint32_t>,
    QUANTIZED<Format::Q4_0>,      QUANTIZED<Format::Q4_1>,      QUANTIZED<Format::Q5_0>,
    QUANTIZED<Format::Q5_1>,      QUANTIZED<Format::Q8_0>,      QUANTIZED<Format::Q2_K>,
    QUANTIZED<Format::Q3_K>,      QUANTIZED<Format::Q4_K>,      QUANTIZED<Format::Q5_K>,
    QUANTIZED<Format::Q6_K>,      QUANTIZED<Format::IQ4_NL>,
};
static_assert(sizeof(CODECS) / sizeof(*CODECS) == NUM_FORMATS, "one for each format");

}  // namespace

void pack_panels(Format format, const uint8_t* rows, int64_t n, int64_t k, int64_t first, int64_t last,
                 uint8_t* panels, int64_t panel_stride) {
    const int64_t row_bytes = file_row_bytes(format, k);
    for (int64_t p = first; p < last; ++p) {
        const int count = static_cast<int>(std::min<int64_t>(n - p * PANEL, PANEL));
        const Rows of_panel{rows + p * PANEL * row_bytes, row_bytes, count};
        CODECS[static_cast<int>(format)].pack(of_panel, k, panels + p * panel_stride);
    }
}

void dequantize_row(Format format, const uint8_t* row, int64_t k, float* out) {
    CODECS[static_cast<int>(format)].dequantize(row, k, out);
}

}  // namespace octavo
