// Linear maps: norm and rounding of the input, products, and the work on each finished tile.
//
// Threads divide the outputs, never a sum. With few rows every thread prepares all of them for itself, which
// takes less time than waiting for another and fetching what it wrote; with many they prepare a share each
// and meet.
#include "kernels/bump_allocator.h"
#include "kernels/declarations.h"
#include "kernels/multiply.h"
#include "kernels/multiply_amx.h"
#include "kernels/rows.h"

namespace octavo::OCTAVO_ISA {

namespace {

// To wait for other threads and to fetch what they prepared takes about as long as preparing this many rows.
// (SmolLM2-135M, two threads.)
constexpr int64_t ROWS_OF_WAITING = 16;

// Rows whose activations stay in the second-level cache while all panels pass by: half of one of 2 MiB, which
// server processors have; panels take the rest.
constexpr int64_t CACHED_BYTES = 1 << 20;

// Whether each thread prepares all rows, of which its own scratch can hold ROW_PADDING.
bool prepares_alone(int64_t num_rows, int num_threads) {
    return num_rows <= ROW_PADDING && num_rows * (num_threads - 1) <= ROWS_OF_WAITING * num_threads;
}

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

QuantizedRow allocate_quantized(int64_t rows, int64_t k, BumpAllocator& scratch) {
    const int64_t blocks = rows * (k / 32);
    QuantizedRow first;
    first.values = scratch.allocate<int8_t>(rows * k);
    first.scales = scratch.allocate<float>(blocks);
    first.scaled_sums = scratch.allocate<float>(blocks);
    first.sums = scratch.allocate<int32_t>(blocks);
    first.half_sums = scratch.allocate<int32_t>(2 * blocks);
    return first;
}

// Allocate `num_rows` prepared rows.
Activations lay_out(const Linear& linear, int64_t num_rows, BumpAllocator& scratch) {
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
        x.quantized = allocate_quantized(rows, x.k, scratch);
    }
    if (kinds.pairs) {
        x.pairs = scratch.allocate<uint16_t>(rows * x.padded_k);
    }
    if (kinds.numbers) {
        x.numbers = scratch.allocate<float>(rows * x.k);
    }
    return x;
}

// Prepares rows of a linear map's input.
class Preparation {
  public:
    // Allocates one row of each kind, to work in.
    Preparation(const Linear& linear, const Step& step, const Activations& to, BumpAllocator& scratch)
        : linear_(linear),
          step_(step),
          to_(to),
          kinds_(linear),
          normed_(scratch.allocate<float>(to.k)),
          rounded_(scratch.allocate<uint16_t>(to.padded_k)) {}

    // All rows: this thread for itself if `alone`, otherwise all threads together.
    void prepare_all(bool alone, Worker& worker) const {
        const int64_t num_rows = step_.num_tokens;
        if (alone) {
            prepare({0, num_rows});
            return;
        }
        if (num_rows < worker.count * ROW_TILE) {
            prepare(share(num_rows, worker));
        } else {
            const int64_t total = (num_rows + ROW_TILE - 1) / ROW_TILE;
            WorkQueue queue(worker, total);
            for (int64_t item; (item = queue.next()) < total;) {
                prepare({item * ROW_TILE, smaller((item + 1) * ROW_TILE, num_rows)});
            }
        }
        worker.wait();
    }

  private:
    void prepare(Range rows) const {
        for (int64_t t = rows.begin; t < rows.end; ++t) {
            prepare(t);
        }
        if (kinds_.quants && to_.quants_tiled && rows.begin < rows.end && rows.end == step_.num_tokens) {
            clear_tile_from(rows.end);
        }
    }

    void prepare(int64_t t) const {
        const float* x = step_.row(linear_.x, t);
        if (linear_.norm.weight != nullptr) {
            norm_row(x, linear_.norm.weight, to_.k, linear_.norm.eps, nullptr, normed_);
            x = normed_;
        }
        if (kinds_.quants) {
            if (to_.quants_tiled) {
                quantize_row(x, to_.k, ROW_TILE, to_.quantized_row_in_tile(t));
            } else {
                quantize_row(x, to_.k, 1, to_.quantized_rows(t));
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

    // Set the rows of the last tile from `t` on, which are no rows of the step, to zero. They are multiplied
    // too, and their products are not used. What lies there may be anything, and numbers too small to be
    // normal take a processor a hundred times as long (steps of few rows took 15 times as long).
    void clear_tile_from(int64_t t) const {
        const QuantizedRow tile = to_.quantized_rows(t / ROW_TILE * ROW_TILE);
        for (int64_t r = t % ROW_TILE; r > 0 && r < ROW_TILE; ++r) {
            for (int64_t b = 0; b < to_.k / 32; ++b) {
                tile.scales[b * ROW_TILE + r] = tile.scaled_sums[b * ROW_TILE + r] = 0;
            }
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
            if (linear_.gated()) {
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
            store_up_to(valid, out + column, activate(linear_.activation, gate) * up);
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

// Which panels a thread computes, and the products with them.
//
// With few rows each takes an equal part, one panel after the other as they lie in memory, whose speed is all
// that counts. With more, computing takes most of the time, and threads take a few panels at a time from a
// queue.
class Products {
  public:
    Products(const Linear& linear, const Step& step, const Activations& x, Context& context)
        : linear_(linear), step_(step), x_(x), context_(context), output_(linear, step) {}

    // Fetch what `run` reads first, while the rows are prepared. With many rows that is soon made good.
    void prefetch_first(const Worker& worker) const {
        if (step_.num_tokens >= MIN_QUEUE_ROWS) {
            return;
        }
        const uint8_t* data = locate(share(num_panels_, worker).begin).data;
        for (int64_t i = 0; i < PREFETCH_BYTES; i += 64) {
            prefetch(data + i);
        }
    }

    void run(Worker& worker) {
        if (step_.num_tokens < MIN_QUEUE_ROWS) {
            run_panels({0, step_.num_tokens}, share(num_panels_, worker), {0, 0});
        } else {
            run_from_queue(worker);
        }
    }

  private:
    // A panel; of a gated map one of the gate, which one of up follows.
    struct Location {
        const PackedMatrix& part;
        const uint8_t* data;
        int64_t panel;         // of the part
        int64_t first_column;  // of the output, where the part begins
    };

    Location locate(int64_t panel) const {
        const PackedMatrix* part = linear_.parts.data();
        const PackedMatrix* last = part + linear_.parts.size() - 1;
        int64_t first_column = 0;
        while (!linear_.gated() && part != last && panel >= num_panels(*part)) {
            panel -= num_panels(*part);
            first_column += part->n;
            ++part;
        }
        return {*part, part->data + panel * part->panel_stride, panel, first_column};
    }

    int64_t count_panels() const {
        int64_t count = num_panels(linear_.parts.data()[0]);
        for (size_t i = 1; !linear_.gated() && i < linear_.parts.size(); ++i) {
            count += num_panels(linear_.parts.data()[i]);
        }
        return count;
    }

    // Few panels an item, so that all threads end at about the same time, but as many as a product
    // computes at a time.
    int64_t item_panels() const {
        int panels = 1;
        for (size_t i = 0; i < linear_.parts.size(); ++i) {
            panels = larger(panels, panels_at_a_time(linear_.parts.data()[i].format));
        }
        return linear_.gated() ? panels / 2 : panels;
    }

    // Panels that are computed together; of a gated map, pairs of them.
    int64_t unit_panels() const { return linear_.gated() ? UNIT_PANELS / 2 : UNIT_PANELS; }

    void run_from_queue(Worker& worker) {
        const int64_t row_bytes = x_.k * 2;
        const int64_t rows = larger<int64_t>(CACHED_BYTES / row_bytes / ROW_PADDING, 1) * ROW_PADDING;
        const int64_t num_row_ranges = (step_.num_tokens + rows - 1) / rows;
        const int64_t panels = item_panels(), items_per_range = (num_panels_ + panels - 1) / panels;
        const auto rows_of = [=](int64_t item) {
            const int64_t begin = item / items_per_range * rows;
            return Range{begin, smaller(begin + rows, step_.num_tokens)};
        };
        const auto panels_of = [=](int64_t item) {
            const int64_t begin = item % items_per_range * panels;
            return Range{begin, smaller(begin + panels, num_panels_)};
        };
        const int64_t total = num_row_ranges * items_per_range;
        WorkQueue queue(worker, total);
        for (int64_t item = queue.next(), next; item < total; item = next) {
            next = queue.next();  // this early, so that it can be fetched meanwhile
            run_panels(rows_of(item), panels_of(item), next < total ? panels_of(next) : Range{0, 0});
        }
    }

    // `after`: the panels that come next, if any.
    void run_panels(Range rows, Range panels, Range after) {
        while (panels.begin < panels.end) {
            const Range now = first_unit(panels);
            panels.begin = now.end;
            run_unit(rows, now, panels.begin < panels.end ? panels : after);
        }
    }

    // The panels that are computed together: a few, of one part.
    Range first_unit(Range panels) const {
        const Location location = locate(panels.begin);
        const int64_t left = num_panels(location.part) - location.panel;
        return {panels.begin, smaller(panels.begin + smaller(unit_panels(), left), panels.end)};
    }

    void run_unit(Range rows, Range panels, Range after) {
        const Location location = locate(panels.begin);
        Unit unit{};
        unit.first = location.panel;
        unit.count = find(location, panels, unit.panels);
        if (after.begin < after.end) {
            const Range next = first_unit(after);
            const Location next_location = locate(next.begin);
            unit.num_next = find(next_location, next, unit.next);
            unit.next_bytes = next_location.part.panel_stride;
        }
        output_.begin_unit(location.part, unit, location.first_column);
        MULTIPLY[static_cast<int>(location.part.format)](unit, x_, rows.begin, rows.end, context_, output_);
    }

    // Where the panels of a unit lie, whose first is at `location`, and how many they are.
    int find(const Location& location, Range panels, const uint8_t** found) const {
        int count = 0;
        for (int64_t i = 0; i < panels.end - panels.begin; ++i) {
            found[count++] = location.data + i * location.part.panel_stride;
            if (linear_.gated()) {
                const PackedMatrix& up = linear_.parts.data()[1];
                found[count++] = up.data + (location.panel + i) * up.panel_stride;
            }
        }
        return count;
    }

    const Linear& linear_;
    const Step& step_;
    const Activations& x_;
    Context& context_;
    Output output_;
    int64_t num_panels_ = count_panels();
};

}  // namespace

void linear(const Linear& linear, const Step& step, Worker& worker) {
    const bool alone = prepares_alone(step.num_tokens, worker.count);
    BumpAllocator own(worker.scratch, static_cast<int64_t>(worker.scratch_bytes));
    BumpAllocator shared(step.shared_scratch, step.shared_scratch_bytes);
    const Activations x = lay_out(linear, step.num_tokens, alone ? own : shared);
    const Preparation preparation(linear, step, x, own);
    Context context{own.allocate<uint8_t>(unpacked_bytes(x.k))};
    Products products(linear, step, x, context);
    products.prefetch_first(worker);
    preparation.prepare_all(alone, worker);
    products.run(worker);
#if defined(OCTAVO_ISA_amx)
    release_tiles(context);
#endif
}

int64_t linear_scratch_bytes(const Linear& linear, int64_t num_tokens) {
    BumpAllocator counted = BumpAllocator::counting();
    lay_out(linear, num_tokens, counted);
    return counted.used();
}

}  // namespace octavo::OCTAVO_ISA
