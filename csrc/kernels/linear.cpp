// Linear maps: norm and rounding of the input, products, and what is done with each finished tile.
//
// Threads divide the outputs, never a sum. With few rows every thread prepares all of them for itself, which
// takes less time than waiting for another; with many they prepare a share each and meet.
#include "kernels/linear.h"

#include "kernels/multiply.h"
#include "kernels/multiply_amx.h"
#include "kernels/pieces.h"
#include "kernels/rows.h"

namespace octavo::OCTAVO_ISA {

namespace {

constexpr int64_t ROWS_PREPARED_ALONE = 2;

// Rows whose activations stay in the second-level cache while all panels pass by: half of one of 2 MiB, which
// server processors have; panels take the rest.
constexpr int64_t CACHED_BYTES = 1 << 20;

struct Kinds {
    bool quants = false, pairs = false, numbers = false;

    explicit Kinds(const Linear& linear) {
        for (size_t i = 0; i < linear.parts.size(); ++i) {
            const Format format = linear.parts.data()[i].format;
            quants |= reads_quants(format);
            pairs |= format == Format::BF16;
            numbers |= !reads_quants(format) && format != Format::BF16;
        }
    }
};

QuantizedRow take_quantized(int64_t rows, int64_t k, Pieces& pieces) {
    const int64_t blocks = rows * (k / 32);
    QuantizedRow first;
    first.values = pieces.take<int8_t>(rows * k);
    first.scales = pieces.take<float>(blocks);
    first.scaled_sums = pieces.take<float>(blocks);
    first.sums = pieces.take<int32_t>(blocks);
    first.half_sums = pieces.take<int32_t>(2 * blocks);
    return first;
}

// Room for `num_rows` prepared rows.
Activations lay_out(const Linear& linear, int64_t num_rows, Pieces& pieces) {
    const Kinds kinds(linear);
    const int64_t rows = round_up(num_rows, ROW_PADDING);
    Activations x{};
    x.k = linear.x.num_columns;
    x.padded_k = round_up(x.k, 32);
#if defined(OCTAVO_ISA_amx)
    x.quants_tiled = num_rows > DIRECT_ROWS;
    x.pairs_tiled = true;
#endif
    if (kinds.quants) {
        x.quantized = take_quantized(rows, x.k, pieces);
    }
    if (kinds.pairs) {
        x.pairs = pieces.take<uint16_t>(rows * x.padded_k);
    }
    if (kinds.numbers) {
        x.numbers = pieces.take<float>(rows * x.k);
    }
    return x;
}

// Prepares rows of a linear map's input.
class Preparation {
  public:
    // Takes room for one row, to work in.
    Preparation(const Linear& linear, const Step& step, const Activations& to, Pieces& pieces)
        : linear_(linear),
          step_(step),
          to_(to),
          kinds_(linear),
          normed_(pieces.take<float>(to.k)),
          rounded_(pieces.take<uint16_t>(to.padded_k)),
          quantized_(take_quantized(1, to.k, pieces)) {}

    void prepare(int64_t t) const {
        const float* x = step_.row(linear_.x, t);
        if (linear_.norm.weight != nullptr) {
            norm_row(x, linear_.norm.weight, to_.k, linear_.norm.eps, normed_);
            x = normed_;
        }
        if (kinds_.quants) {
            const QuantizedRow& row = to_.quants_tiled ? quantized_ : to_.quantized_rows(t);
            quantize_row(x, to_.k, row);
            if (to_.quants_tiled) {
                put_in_tile(row, t);
            }
        }
        if (kinds_.pairs) {
            uint16_t* row = to_.pairs_tiled ? rounded_ : to_.pairs + t * to_.padded_k;
            round_row(x, to_.k, to_.padded_k, row);
            if (to_.pairs_tiled) {
                put_in_tile(row, t);
            }
        }
        if (kinds_.numbers) {
            __builtin_memcpy(to_.numbers + t * to_.k, x, to_.k * sizeof(float));
        }
    }

  private:
    void put_in_tile(const QuantizedRow& row, int64_t t) const {
        const QuantizedRow tile = to_.quantized_rows(t / ROW_TILE * ROW_TILE);
        const int64_t r = t % ROW_TILE;
        for (int64_t b = 0; b < to_.k / 32; ++b) {
            const int64_t place = b * ROW_TILE + r;
            __builtin_memcpy(tile.values + place * 32, row.values + b * 32, 32);
            tile.scales[place] = row.scales[b];
            tile.scaled_sums[place] = row.scaled_sums[b];
            tile.sums[place] = row.sums[b];
            tile.half_sums[2 * b * ROW_TILE + r] = row.half_sums[2 * b];
            tile.half_sums[(2 * b + 1) * ROW_TILE + r] = row.half_sums[2 * b + 1];
        }
    }

    void put_in_tile(const uint16_t* row, int64_t t) const {
        uint16_t* tile = to_.pairs + t / ROW_TILE * ROW_TILE * to_.padded_k + t % ROW_TILE * 32;
        for (int64_t b = 0; b < to_.padded_k / 32; ++b) {
            __builtin_memcpy(tile + b * ROW_TILE * 32, row + b * 32, 64);
        }
    }

    const Linear& linear_;
    const Step& step_;
    const Activations& to_;
    Kinds kinds_;
    float* normed_;
    uint16_t* rounded_;
    QuantizedRow quantized_;
};

// Adds bias and residual, or gates, and writes to the output.
class Output final : public TileSink {
  public:
    Output(const Linear& linear, const Step& step) : linear_(linear), step_(step) {}

    void begin_unit(const PackedMatrix& matrix, const Unit& unit, int64_t first_column) {
        matrix_ = &matrix;
        unit_ = &unit;
        first_column_ = first_column;
    }

    void take(int64_t row, int rows, const float* sums) override {
        constexpr int STRIDE = UNIT_PANELS * PANEL;
        for (int r = 0; r < rows; ++r) {
            if (linear_.gated) {
                gate(row + r, sums + r * STRIDE);
            } else {
                add(row + r, sums + r * STRIDE);
            }
        }
    }

  private:
    void gate(int64_t row, const float* sums) {
        const PackedMatrix* parts = linear_.parts.data();
        float* out = step_.row(linear_.out, row);
        for (int pair = 0; pair < unit_->count / 2; ++pair) {
            const int64_t column = (unit_->first + pair) * PANEL;
            const int64_t valid = valid_outputs(column);
            f32x16 gate = load(sums + 2 * pair * PANEL), up = load(sums + (2 * pair + 1) * PANEL);
            if (parts[0].bias != nullptr) {
                gate = gate + load_up_to(valid, parts[0].bias + column);
                up = up + load_up_to(valid, parts[1].bias + column);
            }
            store_up_to(valid, out + column, silu(gate) * up);
        }
    }

    void add(int64_t row, const float* sums) {
        float* out = step_.row(linear_.out, row) + first_column_;
        const float* residual =
            linear_.residual.exists() ? step_.row(linear_.residual, row) + first_column_ : nullptr;
        for (int p = 0; p < unit_->count; ++p) {
            const int64_t column = (unit_->first + p) * PANEL;
            const int64_t valid = valid_outputs(column);
            f32x16 y = load(sums + p * PANEL);
            if (matrix_->bias != nullptr) {
                y = y + load_up_to(valid, matrix_->bias + column);
            }
            if (residual != nullptr) {
                y = y + load_up_to(valid, residual + column);
            }
            store_up_to(valid, out + column, y);
        }
    }

    int64_t valid_outputs(int64_t column) const { return smaller<int64_t>(PANEL, matrix_->n - column); }

    const Linear& linear_;
    const Step& step_;
    const PackedMatrix* matrix_ = nullptr;
    const Unit* unit_ = nullptr;
    int64_t first_column_ = 0;
};

int64_t num_panels(const PackedMatrix& matrix) {
    return (matrix.n + PANEL - 1) / PANEL;
}

// A thread's products: the panels `begin` up to `end` of all panels of all parts, for all rows.
class Products {
  public:
    Products(const Linear& linear, const Step& step, const Activations& x, Context& context)
        : linear_(linear), step_(step), x_(x), context_(context), output_(linear, step) {
        const int64_t row_bytes = x.k * 2;
        block_rows_ = larger<int64_t>(CACHED_BYTES / row_bytes / ROW_PADDING, 1) * ROW_PADDING;
    }

    // Fetch what `run` reads first, while the rows are prepared.
    static void prefetch_first(const Linear& linear, const Worker& worker) {
        const PackedMatrix* parts = linear.parts.data();
        int64_t panel = share(linear.gated ? num_panels(parts[0]) : total_panels(linear), worker).begin;
        size_t part = 0;
        while (part + 1 < linear.parts.size() && panel >= num_panels(parts[part])) {
            panel -= num_panels(parts[part]);
            ++part;
        }
        const uint8_t* first = parts[part].data + panel * parts[part].panel_stride;
        for (int64_t i = 0; i < PREFETCH_BYTES; i += 64) {
            prefetch(first + i);
        }
    }

    void run(Worker& worker) {
        const int64_t num_rows = step_.num_tokens;
        for (int64_t begin = 0; begin < num_rows; begin += block_rows_) {
            begin_ = begin;
            end_ = smaller(begin + block_rows_, num_rows);
            if (linear_.gated) {
                run_gated(share(num_panels(linear_.parts.data()[0]), worker));
            } else {
                run_stacked(share(total_panels(linear_), worker));
            }
        }
    }

  private:
    static int64_t total_panels(const Linear& linear) {
        int64_t total = 0;
        for (size_t i = 0; i < linear.parts.size(); ++i) {
            total += num_panels(linear.parts.data()[i]);
        }
        return total;
    }

    void run_stacked(Range panels) {
        int64_t first_panel = 0, first_column = 0;
        for (size_t i = 0; i < linear_.parts.size(); ++i) {
            const PackedMatrix& matrix = linear_.parts.data()[i];
            const int64_t count = num_panels(matrix);
            const int64_t begin = larger<int64_t>(panels.begin - first_panel, 0);
            const int64_t end = smaller(panels.end - first_panel, count);
            for (int64_t p = begin; p < end; p += UNIT_PANELS) {
                Unit unit{};
                unit.count = static_cast<int>(smaller<int64_t>(UNIT_PANELS, end - p));
                unit.first = p;
                for (int j = 0; j < unit.count; ++j) {
                    unit.panels[j] = matrix.data + (p + j) * matrix.panel_stride;
                }
                set_next(unit, matrix, p + unit.count, end);
                output_.begin_unit(matrix, unit, first_column);
                MULTIPLY[static_cast<int>(matrix.format)](unit, x_, begin_, end_, context_, output_);
            }
            first_panel += count;
            first_column += matrix.n;
        }
    }

    // Gate and up panels of the same outputs together, so that a finished tile has both.
    void run_gated(Range panels) {
        const PackedMatrix& gate = linear_.parts.data()[0];
        const PackedMatrix& up = linear_.parts.data()[1];
        for (int64_t p = panels.begin; p < panels.end; p += UNIT_PANELS / 2) {
            Unit unit{};
            const int pairs = static_cast<int>(smaller<int64_t>(UNIT_PANELS / 2, panels.end - p));
            unit.count = 2 * pairs;
            unit.first = p;
            for (int j = 0; j < pairs; ++j) {
                unit.panels[2 * j] = gate.data + (p + j) * gate.panel_stride;
                unit.panels[2 * j + 1] = up.data + (p + j) * up.panel_stride;
            }
            set_next(unit, gate, p + pairs, panels.end);
            output_.begin_unit(gate, unit, 0);
            MULTIPLY[static_cast<int>(gate.format)](unit, x_, begin_, end_, context_, output_);
        }
    }

    static void set_next(Unit& unit, const PackedMatrix& matrix, int64_t panel, int64_t end) {
        unit.next = matrix.data + panel * matrix.panel_stride;
        unit.next_bytes = smaller<int64_t>(UNIT_PANELS, end - panel) * matrix.panel_stride;
    }

    const Linear& linear_;
    const Step& step_;
    const Activations& x_;
    Context& context_;
    Output output_;
    int64_t block_rows_, begin_ = 0, end_ = 0;
};

}  // namespace

void linear(const Linear& linear, const Step& step, Worker& worker) {
    const int64_t num_rows = step.num_tokens;
    const bool alone = num_rows <= ROWS_PREPARED_ALONE;
    Pieces own(worker.scratch), shared(step.shared_scratch);
    const Activations x = lay_out(linear, num_rows, alone ? own : shared);
    const Preparation preparation(linear, step, x, own);
    Products::prefetch_first(linear, worker);
    const Range rows = alone ? Range{0, num_rows} : share(num_rows, worker);
    for (int64_t t = rows.begin; t < rows.end; ++t) {
        preparation.prepare(t);
    }
    if (!alone) {
        worker.wait();
    }
    Context context{own.take<uint8_t>(unpacked_bytes(x.k))};
    Products(linear, step, x, context).run(worker);
#if defined(OCTAVO_ISA_amx)
    release_tiles(context);
#endif
}

int64_t linear_scratch_bytes(const Linear& linear, int64_t num_tokens) {
    Pieces counted(nullptr);
    lay_out(linear, num_tokens, counted);
    return counted.used();
}

}  // namespace octavo::OCTAVO_ISA
