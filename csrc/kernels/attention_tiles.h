// Attention of a few rows over one chunk with AMX tiles, for K and V in bf16.
//
// Both products are of tiles with the same shapes, 16 rows [16][depth] times [depth / 2][16][2]:
//
//   scores = queries [rows][head_size] x K, a tile is `depth` features of a group of 16 tokens
//   values = weights [rows][CHUNK] x V, a tile is 16 features of `depth` tokens, one group or two
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
    // Two tiles: with two of K or V and four of sums, all eight there are.
    static constexpr int MAX_ROWS = 32;

    explicit AttentionTiles(int head_size) : depth_(head_size % 32 == 0 ? 32 : 16) {}

    AttentionTiles(const AttentionTiles&) = delete;

    ~AttentionTiles() { _tile_release(); }

    // Those that are computed for such rows: two by two, as AMX tiles hold V.
    static Span groups(const Span* seen, int num_rows) {
        const Span any = groups_seen(seen, num_rows);
        return {any.begin & ~1, (any.end + 1) & ~1};
    }

    // Whether V of groups 2 i and 2 i + 1 must lie together.
    bool takes_pairs() const { return depth_ == 2 * GROUP; }

    // The records of up to MAX_ROWS rows, whose queries lie one after the other, over a chunk of which each
    // sees `seen[row]`.
    void attend(int num_rows, const Operand* queries, const Chunk& chunk, const Span* seen, float* records) {
        alignas(64) float scores[MAX_ROWS * CHUNK];
        alignas(64) uint16_t weights[MAX_ROWS * CHUNK];
        configure(num_rows);
        const Span span = groups(seen, num_rows);
        const int head_size = chunk.head_size;
        for (int group = span.begin; group < span.end; group += 2) {
            const uint8_t *left = chunk.pages[group].keys, *right = chunk.pages[group + 1].keys;
            multiply(
                {queries, MAX_HEAD_SIZE, head_size}, {GROUP, right - left, true},
                [=](int d) { return left + d * GROUP * 2; }, scores + group * GROUP, CHUNK);
        }
        softmax<MAX_ROWS>(scores, num_rows, chunk, span, seen, weights, records);
        const int first = span.begin * GROUP, num_tokens = (span.end - span.begin) * GROUP;
        for (int d = 0; d < head_size; d += 2 * LANES) {
            const bool has_right = d + LANES < head_size;
            multiply(
                {weights + first, CHUNK, num_tokens}, {head_size, has_right ? LANES * 4 : 0, has_right},
                [&](int token) { return chunk.pages[(first + token) / GROUP].values + d * 4; }, records + d,
                record_size(head_size));
        }
    }

  private:
    // Tiles for so many rows: 0 and 1 are sums of the first 16, 2 and 3 of the others; 4 and 5 are rows, 6
    // and 7 what they are multiplied with.
    void configure(int num_rows) {
        if (num_rows == num_rows_) {
            return;
        }
        TileConfiguration configuration;
        const auto upper = static_cast<uint8_t>(smaller(num_rows, LANES));
        const auto lower = static_cast<uint8_t>(larger(num_rows - LANES, 1));
        configuration.num_rows[0] = configuration.num_rows[1] = configuration.num_rows[4] = upper;
        configuration.num_rows[2] = configuration.num_rows[3] = configuration.num_rows[5] = lower;
        configuration.num_rows[6] = configuration.num_rows[7] = static_cast<uint8_t>(depth_ / 2);
        configuration.row_bytes[4] = configuration.row_bytes[5] = static_cast<uint16_t>(depth_ * 2);
        configuration.load();
        num_rows_ = num_rows;
    }

    struct Rows {
        const uint16_t* data;
        int stride, size;  // numbers
    };

    struct Columns {
        int pairs_apart;  // from one row of a tile to the next
        int64_t right;    // bytes from a tile to the one beside it
        bool has_right;
    };

    // out[row * stride]: the rows times a column of tiles, and beside it times the column to the right of it.
    // `tile_at(i)`: what meets the rows' numbers from i on.
    template <class TileAt>
    void multiply(const Rows& rows, const Columns& columns, TileAt tile_at, float* out, int stride) const {
        const bool has_lower = num_rows_ > LANES;
        const uint16_t* lower = rows.data + LANES * rows.stride;
        const int64_t row_bytes = rows.stride * 2, pairs_bytes = columns.pairs_apart * 4;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int i = 0; i < rows.size; i += depth_) {
            const uint8_t* tile = tile_at(i);
            _tile_loadd(4, rows.data + i, row_bytes);
            _tile_loadd(6, tile, pairs_bytes);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, tile + columns.right, pairs_bytes);
            _tile_dpbf16ps(1, 4, 7);
            if (has_lower) {
                _tile_loadd(5, lower + i, row_bytes);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
        store_sums(out, stride, has_lower, columns.has_right);
    }

    int depth_;
    int num_rows_ = 0;  // that tiles are configured for
};

}  // namespace octavo::OCTAVO_ISA

#endif
