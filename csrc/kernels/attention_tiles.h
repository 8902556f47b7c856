// Attention of a few rows over one chunk with AMX tiles, for K and V in bf16.
//
// Both products are of tiles with the same shapes, 16 rows [16][depth] times [depth / 2][16][2]:
//
//   scores = queries [rows][head_size] x K, a tile is `depth` features of a panel of 16 tokens
//   values = weights [rows][CHUNK] x V, a tile is 16 features of `depth` tokens, one panel or two
//
// Tiles sum in an order of their own (see multiply_amx.h), so on this instruction set all rows go this way.
#pragma once

#include "kernels/attention_chunk.h"
#include "kernels/tiles.h"

#if defined(OCTAVO_ISA_amx)

namespace octavo::OCTAVO_ISA {

// How AttentionThread computes a chunk.
class AttentionTiles {
  public:
    using Number = uint16_t;
    using Operand = uint16_t;
    static constexpr int MAX_ROWS = 2 * LANES;

    explicit AttentionTiles(int head_size) : depth_(head_size % 32 == 0 ? 32 : 16) {}

    AttentionTiles(const AttentionTiles&) = delete;

    ~AttentionTiles() { _tile_release(); }

    // Number of rows that are computed over a chunk together. If K and V of a chunk, 16 rows and their scores
    // fit the first-level cache, 16 rows; otherwise more, since then K and V are read fewer times.
    static int strip_rows(int head_size) { return is_small(head_size) ? LANES : 2 * LANES; }

    // The panels that are computed for such rows: two by two, as AMX tiles hold V.
    static Span panels(const Span* seen, int num_rows) {
        const Span any = panels_seen(seen, num_rows);
        return {any.begin & ~1, (any.end + 1) & ~1};
    }

    // Whether V of panels 2 i and 2 i + 1 must lie together.
    bool takes_pairs() const { return depth_ == 2 * KV_PANEL; }

    // The records of up to MAX_ROWS rows, whose queries lie one after the other, over a chunk of which each
    // sees `seen[row]`. `meanwhile` is called between the products, before records are
    // written.
    template <class Meanwhile>
    void attend(int num_rows, const Operand* queries, const Chunk& chunk, const Span* seen, float* records,
                Meanwhile meanwhile) {
        alignas(64) float scores[MAX_ROWS * CHUNK];
        configure(num_rows);
        const Span span = panels(seen, num_rows);
        const int head_size = chunk.head_size;
        multiply(
            {queries, MAX_HEAD_SIZE, head_size}, {span.end - span.begin, KV_PANEL},
            [=, kv = chunk.kv + span.begin](int d, int column) { return kv[column].keys + d * KV_PANEL * 2; },
            scores + span.begin * KV_PANEL, CHUNK);
        meanwhile();
        weigh(scores, num_rows, chunk, span, seen, records);
        multiply(
            {weights_of(scores) + span.begin * KV_PANEL, WEIGHTS_APART, (span.end - span.begin) * KV_PANEL},
            {head_size / LANES, head_size},
            [kv = chunk.kv + span.begin](unsigned token, int column) {
                return kv[token / KV_PANEL].values + column * LANES * 4;
            },
            records, record_size(head_size));
    }

  private:
    // Weights take the place of their row's scores.
    static constexpr int WEIGHTS_APART = CHUNK * sizeof(float) / sizeof(Operand);

    static Operand* weights_of(float* scores) { return reinterpret_cast<Operand*>(scores); }

    static constexpr bool is_small(int head_size) { return head_size <= 64; }

    // What multiplies tiles sleeps after 0.3 us without work, and takes as long to wake (on Sapphire Rapids).
    // It stays awake during the softmax of this many rows, also where another process has half of the core.
    static constexpr int ROWS_AWAKE = 4;

    // With so few rows memory sets the pace: fetching ahead only gets in the way, and four columns are no
    // faster than two, which are read more nearly in order.
    static constexpr int FEW_ROWS = 8;

    // As softmax. It keeps awake what multiplies tiles, and fetches, if rows are more than a few. (With
    // larger heads products take so long that neither pays.)
    static void weigh(float* scores, int num_rows, const Chunk& chunk, Span span, const Span* seen,
                      float* records) {
        for (int begin = 0, end; begin < num_rows; begin = end) {
            end = smaller(begin + ROWS_AWAKE, num_rows);
            if (num_rows > FEW_ROWS && is_small(chunk.head_size)) {
                fetch(chunk, {begin, end}, num_rows);
                _tile_dpbf16ps(0, 4, 6);  // of the tiles' present contents: only its timing matters
            }
            softmax<ROWS_AWAKE>(scores + begin * CHUNK, end - begin, chunk, span, seen + begin,
                                weights_of(scores + begin * CHUNK), WEIGHTS_APART,
                                records + begin * record_size(chunk.head_size));
        }
    }

    // The share of `rows` among `num_rows` of what is to be fetched: all at once would hold up the softmax.
    static void fetch(const Chunk& chunk, Span rows, int num_rows) {
        const int lines = KV_PANEL * chunk.head_size * static_cast<int>(sizeof(Number)) / 64;
        for (int panel = chunk.fetched.begin; panel < chunk.fetched.end; ++panel) {
            for (int line = lines * rows.begin / num_rows; line < lines * rows.end / num_rows; ++line) {
                prefetch_far(chunk.ahead[panel].keys + line * 64);
                prefetch_far(chunk.ahead[panel].values + line * 64);
            }
        }
    }

    // Set up the tiles for `num_rows`: 0 to 3 are sums, 4 is the first rows and 5 the rows below them, 6 and
    // 7 are columns. Sums 2 and 3 belong to the rows below, or to the first rows if there are none below.
    void configure(int num_rows) {
        if (num_rows == num_rows_) {
            return;
        }
        TileConfiguration configuration;
        const auto upper = static_cast<uint8_t>(smaller(num_rows, LANES));
        const auto lower = static_cast<uint8_t>(num_rows > LANES ? num_rows - LANES : num_rows);
        configuration.num_rows[0] = configuration.num_rows[1] = configuration.num_rows[4] = upper;
        configuration.num_rows[2] = configuration.num_rows[3] = configuration.num_rows[5] = lower;
        configuration.row_bytes[4] = configuration.row_bytes[5] = static_cast<uint16_t>(depth_ * 2);
        configuration.num_rows[6] = configuration.num_rows[7] = static_cast<uint8_t>(depth_ / 2);
        configuration.load();
        num_rows_ = num_rows;
    }

    struct Rows {
        const uint16_t* data;
        int stride, size;  // numbers
    };

    struct Columns {
        int count;        // of tiles, side by side
        int pairs_apart;  // from one row of a tile to the next
    };

    // out[row * stride]: the rows times the columns. `tile_at(i, column)`: what meets the rows' numbers from
    // i on.
    template <class TileAt>
    void multiply(const Rows& rows, const Columns& columns, TileAt tile_at, float* out, int stride) const {
        for (int column = 0; column < columns.count; column += 2) {
            if (num_rows_ > LANES) {
                multiply<Second::rows>(rows, columns, tile_at, column, out, stride);
            } else if (num_rows_ > FEW_ROWS && column + 4 <= columns.count) {
                multiply<Second::columns>(rows, columns, tile_at, column, out, stride);
                column += 2;
            } else {
                multiply<Second::none>(rows, columns, tile_at, column, out, stride);
            }
        }
    }

    // What two sums more are of: the rows below, or the next two columns.
    enum class Second { none, rows, columns };

    // Of two columns, or what there is of them; of the next two as well if they are SECOND.
    template <Second SECOND, class TileAt>
    OCTAVO_INLINE void multiply(const Rows& rows, const Columns& columns, TileAt tile_at, int column,
                                float* out, int stride) const {
        const int64_t row_bytes = rows.stride * 2, pairs_bytes = columns.pairs_apart * 4;
        const bool has_right = column + 1 < columns.count;
        const int right = has_right ? column + 1 : column;
        _tile_zero(0);
        _tile_zero(1);
        if constexpr (SECOND != Second::none) {
            _tile_zero(2);
            _tile_zero(3);
        }
        for (int i = 0; i < rows.size; i += depth_) {
            _tile_loadd(4, rows.data + i, row_bytes);
            _tile_loadd(6, tile_at(i, column), pairs_bytes);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, tile_at(i, right), pairs_bytes);
            _tile_dpbf16ps(1, 4, 7);
            if constexpr (SECOND == Second::rows) {
                _tile_loadd(5, rows.data + LANES * rows.stride + i, row_bytes);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            if constexpr (SECOND == Second::columns) {
                _tile_loadd(6, tile_at(i, column + 2), pairs_bytes);
                _tile_dpbf16ps(2, 4, 6);
                _tile_loadd(7, tile_at(i, column + 3), pairs_bytes);
                _tile_dpbf16ps(3, 4, 7);
            }
        }
        out += column * LANES;
        const int64_t out_bytes = stride * 4;
        _tile_stored(0, out, out_bytes);
        if (has_right) {
            _tile_stored(1, out + LANES, out_bytes);
        }
        if constexpr (SECOND != Second::none) {
            out += SECOND == Second::rows ? LANES * stride : 2 * LANES;
            _tile_stored(2, out, out_bytes);
            if (has_right) {
                _tile_stored(3, out + LANES, out_bytes);
            }
        }
    }

    int depth_;
    int num_rows_ = 0;  // that tiles are configured for
};

}  // namespace octavo::OCTAVO_ISA

#endif
