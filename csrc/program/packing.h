// From the bytes of a file to packed panels (kernels/formats.h), and from one row of a file to numbers.
#pragma once

#include <cstdint>

#include "kernels/formats.h"

namespace octavo {

// Bytes of a row of `k` elements in a file. `k` must be a multiple of the format's block.
constexpr int64_t file_row_bytes(Format format, int64_t k) {
    return k / info(format).quant_block * info(format).quant_block_bytes;
}

// Pack panels `first` up to `last` of the matrix [n, k] at `rows` (rows of file_row_bytes) to `panels`, where
// panel p begins at p * panel_stride. Rows past n are zeros: quants are info(format).zero, scales are 0.
void pack_panels(Format format, const uint8_t* rows, int64_t n, int64_t k, int64_t first, int64_t last,
                 uint8_t* panels, int64_t panel_stride);

// Write the `k` numbers of one row of a file to `out`. The same bits as octavo.weights.dequantize gives.
void dequantize_row(Format format, const uint8_t* row, int64_t k, float* out);

}  // namespace octavo
