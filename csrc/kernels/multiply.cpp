// The products of every format: which template serves how many rows.
#include "kernels/multiply.h"

#include "kernels/multiply_amx.h"
#include "kernels/multiply_float.h"
#include "kernels/multiply_int8.h"

namespace octavo::OCTAVO_ISA {

namespace {

constexpr int SUMS_STRIDE = UNIT_PANELS * PANEL;

// Fetches the panels that come next, a share at a time.
class Prefetcher {
  public:
    Prefetcher(const Unit& unit, int64_t num_shares)
        : unit_(unit), share_(round_up(unit.num_next * unit.next_bytes / num_shares + 1, 64)) {}

    void fetch() {
        for (int64_t i = 0; i < share_ && panel_ < unit_.num_next; i += 64) {
            prefetch_far(unit_.next[panel_] + at_);  // the first level holds what is in use
            at_ += 64;
            if (at_ >= unit_.next_bytes) {
                at_ = 0;
                ++panel_;
            }
        }
    }

  private:
    const Unit& unit_;
    int64_t share_;
    int panel_ = 0;
    int64_t at_ = 0;
};

template <Format F>
void multiply_few(const Unit& unit, const Activations& x, int64_t begin, int64_t end, TileSink& sink) {
    alignas(64) float sums[DIRECT_ROWS * SUMS_STRIDE];
    const int rows = static_cast<int>(end - begin);
    const QuantizedRow row = x.quantized_rows(begin);
    for (int p = 0; p < unit.count; ++p) {
        with_rows<DIRECT_ROWS>(rows, [&](auto count) {
            multiply_direct<F, decltype(count)::VALUE>(unit.panels[p], row, x.k, sums + p * PANEL,
                                                       SUMS_STRIDE);
        });
    }
    sink.take(begin, rows, sums);
}

#if defined(OCTAVO_ISA_amx)

template <Format F>
void multiply_many(const Unit& unit, const Activations& x, int64_t begin, int64_t end, Context& context,
                   TileSink& sink) {
    using Q = Quants<F>;
    configure_tiles(BLOCK / Q::SCALES_PER_BLOCK, context);
    const int64_t panel_bytes = round_up(UnpackedPanel::num_bytes(x.k), 64);
    Prefetcher prefetcher(unit, unit.count * (x.k / BLOCK));
    alignas(64) float sums[ROW_TILE * SUMS_STRIDE];
    for (int64_t row = begin; row < end; row += ROW_TILE) {
        for (int p = 0; p < unit.count; ++p) {
            const UnpackedPanel panel(context.scratch + p * panel_bytes, x.k);
            const QuantizedRow rows = x.quantized_rows(row);
            if (row == begin) {
                const Q quants(unit.panels[p], x.k);
                multiply_tiles<Q>(panel, rows, x.k, sums + p * PANEL, SUMS_STRIDE, [&](int64_t block) {
                    unpack_for_tiles(quants, block, panel);
                    prefetcher.fetch();
                });
            } else {
                multiply_tiles<Q>(panel, rows, x.k, sums + p * PANEL, SUMS_STRIDE, [](int64_t) {});
            }
        }
        sink.take(row, static_cast<int>(smaller<int64_t>(ROW_TILE, end - row)), sums);
    }
}

#else

template <Format F>
void multiply_many(const Unit& unit, const Activations& x, int64_t begin, int64_t end, Context& context,
                   TileSink& sink) {
    using Q = Quants<F>;
    const int64_t pair_bytes = round_up(UnpackedPair::num_bytes(x.k), 64);
    for (int p = 0; p < unit.count; ++p) {
        unpack<F>(unit.panels[p], x.k, p % 2, UnpackedPair(context.scratch + p / 2 * pair_bytes, x.k));
    }
    const RowTiles tiles(end - begin, TILE_ROWS);
    Prefetcher prefetcher(unit, tiles.count);
    alignas(64) float sums[TILE_ROWS * SUMS_STRIDE];
    int64_t row = begin;
    for (int64_t tile = 0; tile < tiles.count; ++tile) {
        const int rows = tiles.rows_of(tile);
        const QuantizedRow first = x.quantized_rows(row);
        // Of an odd count the last pair's second panel is what was there.
        for (int p = 0; p < unit.count; p += 2) {
            const UnpackedPair pair(context.scratch + p / 2 * pair_bytes, x.k);
            with_rows<TILE_ROWS>(rows, [&](auto count) {
                multiply_unpacked<Q::SCALES_PER_BLOCK, Q::INFO.has_minimum, decltype(count)::VALUE>(
                    pair, Q::INFO.zero, first, x.k, sums + p * PANEL, SUMS_STRIDE);
            });
        }
        sink.take(row, rows, sums);
        prefetcher.fetch();
        row += rows;
    }
}

#endif

template <Format F>
void multiply_quants(const Unit& unit, const Activations& x, int64_t begin, int64_t end, Context& context,
                     TileSink& sink) {
    // The last rows of a long step may be few, and lie in tiles all the same.
    if (end - begin <= DIRECT_ROWS && !x.quants_tiled) {
        multiply_few<F>(unit, x, begin, end, sink);
    } else {
        multiply_many<F>(unit, x, begin, end, context, sink);
    }
}

// The panels of a unit, `FLOAT_PANELS` at a time: where there are fewer, the last one several times.
struct FloatPanels {
    FloatPanels(const Unit& unit, int first) {
        for (int p = 0; p < FLOAT_PANELS; ++p) {
            panels[p] = unit.panels[smaller(first + p, unit.count - 1)];
        }
    }

    const uint8_t* panels[FLOAT_PANELS];
};

template <Format F>
void multiply_numbers(const Unit& unit, const Activations& x, int64_t begin, int64_t end, Context&,
                      TileSink& sink) {
    using Steps = FloatSteps<F>;
    const int64_t row_stride = F == Format::BF16 ? x.padded_k : x.k;
    const RowTiles tiles(end - begin, TILE_ROWS);
    Prefetcher prefetcher(unit, tiles.count);
    alignas(64) float sums[TILE_ROWS * SUMS_STRIDE];
    int64_t row = begin;
    for (int64_t tile = 0; tile < tiles.count; ++tile) {
        const int rows = tiles.rows_of(tile);
        for (int p = 0; p < unit.count; p += FLOAT_PANELS) {
            const FloatPanels chosen(unit, p);
            with_rows<TILE_ROWS>(rows, [&](auto count) {
                multiply_floats<F, decltype(count)::VALUE>(chosen.panels, Steps::row(x, row), row_stride,
                                                           Steps::num_steps(x.k), sums + p * PANEL,
                                                           SUMS_STRIDE);
            });
        }
        sink.take(row, rows, sums);
        prefetcher.fetch();
        row += rows;
    }
}

#if defined(OCTAVO_ISA_amx)

// With few rows, memory sets the pace, and the first of them fetch the next unit line by line; with many, a
// share is fetched after each tile.
void multiply_bf16(const Unit& unit, const Activations& x, int64_t begin, int64_t end, Context& context,
                   TileSink& sink) {
    constexpr int ROWS = 2 * ROW_TILE;
    constexpr int64_t FEW_ROWS = 4 * ROWS;
    configure_tiles(64, context);
    const bool few = end - begin <= FEW_ROWS;
    Prefetcher prefetcher(unit, (end - begin + ROWS - 1) / ROWS);
    alignas(64) float sums[ROWS * SUMS_STRIDE];
    for (int64_t row = begin; row < end; row += ROWS) {
        const int rows = static_cast<int>(smaller<int64_t>(ROWS, end - row));
        for (int p = 0; p < unit.count; p += 2) {
            const bool fetches = few && row == begin && p < unit.num_next;
            const int64_t ahead = fetches ? unit.next[p] - unit.panels[p] : 0;
            const uint8_t* right = unit.panels[smaller(p + 1, unit.count - 1)];
            multiply_bf16_tiles(unit.panels[p], right, x.pairs + row * x.padded_k, x.padded_k,
                                rows > ROW_TILE, ahead, sums + p * PANEL, SUMS_STRIDE);
        }
        sink.take(row, rows, sums);
        if (!few) {
            prefetcher.fetch();
        }
    }
}

#else

constexpr Multiply multiply_bf16 = multiply_numbers<Format::BF16>;

#endif

}  // namespace

// In the order of `Format`.
const Multiply MULTIPLY[] = {
    multiply_numbers<Format::F32>, multiply_numbers<Format::F16>,   multiply_bf16,
    multiply_quants<Format::Q4_0>, multiply_quants<Format::Q4_1>,   multiply_quants<Format::Q5_0>,
    multiply_quants<Format::Q5_1>, multiply_quants<Format::Q8_0>,   multiply_quants<Format::Q2_K>,
    multiply_quants<Format::Q3_K>, multiply_quants<Format::Q4_K>,   multiply_quants<Format::Q5_K>,
    multiply_quants<Format::Q6_K>, multiply_quants<Format::IQ4_NL>,
};
static_assert(sizeof(MULTIPLY) / sizeof(*MULTIPLY) == NUM_FORMATS, "one for each format");

int64_t unpacked_bytes(int64_t k) {
    return UNIT_PANELS *
           round_up(k * PANEL + 2 * k / 16 * PANEL * 4, 64);  // at most two scales and minimums a block
}

}  // namespace octavo::OCTAVO_ISA
