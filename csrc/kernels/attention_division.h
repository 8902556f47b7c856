// How the work of one attention call is divided among threads.
//
// Work is a line of tiles, and a tile a line of chunks: a tile is a few tokens of one request with the query
// heads that share one KV head. Where there are many tiles, threads take them from a queue. Otherwise each
// gets an equal part of the line by cost. A boundary may fall into a tile; the thread whose part begins the
// tile finishes it: later it folds in the records that the others computed of its other chunks:
//
//   tiles      |  0   |      1        |  2  |  3  | ...
//   threads    |---- 0 ----|--- 1 ---|---- 2 ----| ...       thread 0 takes over the end of tile 1
//
// Each thread computes the boundaries for itself; all get the same ones.
#pragma once

#include "kernels/attention_chunk.h"
#include "platform/thread_pool.h"
#include "program/instructions.h"

namespace octavo::OCTAVO_ISA {

// Rows of a tile: enough to use K and V of a chunk often while they are in the processor's cache, and few
// enough that the rows' records stay there too. A multiple of MAX_ROWS.
constexpr int ATTENTION_TILE_ROWS = 96;

// Fetching K and V of 16 tokens takes about as long as computing this many rows.
constexpr int FETCHING_COST = 4;

// Tiles for each thread, counted as if all cost as much as the costliest. Then the last thread ends at most
// an eighth late.
constexpr int MANY_TILES = 8;

struct Tile {
    int request, kv_head;
    int token, num_tokens;  // of the step
    int position;           // of the first token, in its request
    int seq_len;
    Span context;  // what any of the tokens attends to, within the limits of the division

    int first_chunk() const { return context.begin / CHUNK; }

    int end_chunk() const { return (context.end + CHUNK - 1) / CHUNK; }
};

// The tokens that the token at `position` attends to.
OCTAVO_INLINE Span seen_from(const Attention& instruction, int position, int seq_len) {
    const int begin = instruction.window > 0 ? larger(0, position + 1 - instruction.window) : 0;
    return {begin, instruction.causal ? position + 1 : seq_len};
}

class Division {
  public:
    // Only the tokens of a context within `limits` count; every token of the step must see some of them.
    // `part_bytes` of memory hold the records of the part of a tile that its first thread does not compute.
    Division(const Attention& instruction, const AttentionGroup& group, Span limits, int num_threads,
             int64_t part_bytes)
        : instruction_(instruction),
          group_(group),
          limits_(limits),
          num_threads_(num_threads),
          part_bytes_(part_bytes) {
        for (int request = 0; request < group.num_reqs; ++request) {
            for (int index = 0; index < num_tiles(request); ++index) {
                const int64_t tile_cost = cost(tile(request, 0, index));
                greatest_cost_ = larger(greatest_cost_, tile_cost);
                total_ += tile_cost * num_kv_heads();
            }
            num_tiles_ += num_tiles(request) * num_kv_heads();
        }
    }

    // Whether threads that take whole tiles from a queue all end at about the same time.
    bool has_many_tiles() const { return greatest_cost_ * MANY_TILES * num_threads_ <= total_; }

    // Of all requests.
    int64_t num_tiles() const { return num_tiles_; }

    static int rows_per_token(const Attention& instruction) {
        return instruction.num_heads / instruction.cache.num_kv_heads;
    }

    static int tile_tokens(const Attention& instruction) {
        return larger(1, ATTENTION_TILE_ROWS / rows_per_token(instruction));
    }

    // Of `num_tokens` of one request and a KV head.
    static int num_tiles(const Attention& instruction, int num_tokens) {
        return (num_tokens + tile_tokens(instruction) - 1) / tile_tokens(instruction);
    }

    int num_requests() const { return group_.num_reqs; }

    int num_kv_heads() const { return instruction_.cache.num_kv_heads; }

    // Of each KV head.
    int num_tiles(int request) const {
        return num_tiles(instruction_, group_.query_start_loc[request + 1] - group_.query_start_loc[request]);
    }

    Tile tile(int request, int kv_head, int index) const {
        const int begin = group_.query_start_loc[request], end = group_.query_start_loc[request + 1];
        const int seq_len = group_.seq_lens[request];
        const int token = begin + index * tile_tokens(instruction_);
        const int num_tokens = smaller(tile_tokens(instruction_), end - token);
        const int position = seq_len - (end - token);
        const int first_seen = seen_from(instruction_, position, seq_len).begin;
        const int end_seen = seen_from(instruction_, position + num_tokens - 1, seq_len).end;
        const Span context{larger(first_seen, limits_.begin), smaller(end_seen, limits_.end)};
        return {request, kv_head, token, num_tokens, position, seq_len, context};
    }

    int64_t cost(const Tile& tile) const {
        const Span panels = panels_of(tile.context);
        return (panels.end - panels.begin) * panel_cost(tile);
    }

    int64_t cost(int request) const {
        int64_t sum = 0;
        for (int index = 0; index < num_tiles(request); ++index) {
            sum += cost(tile(request, 0, index));
        }
        return sum * num_kv_heads();
    }

    // Where the work of `thread` begins; that of the last ends where the thread after it would begin.
    int64_t boundary(int thread) const { return total_ * thread / num_threads_; }

    // The first chunk that `thread` or a later one computes of a tile that begins at `begin` on the line.
    int first_chunk(const Tile& tile, int64_t begin, int thread) const {
        const int64_t into_tile = boundary(thread) - begin;
        if (into_tile <= 0) {
            return tile.first_chunk();
        }
        if (into_tile >= cost(tile)) {
            return tile.end_chunk();
        }
        if (!may_be_cut(tile)) {
            return 2 * into_tile < cost(tile) ? tile.first_chunk() : tile.end_chunk();
        }
        const int64_t panel = tile.context.begin / KV_PANEL + into_tile / panel_cost(tile);
        const int chunk = static_cast<int>((panel + CHUNK_PANELS / 2) / CHUNK_PANELS);
        return smaller(larger(chunk, tile.first_chunk()), tile.end_chunk());
    }

  private:
    // Of 16 tokens.
    int64_t panel_cost(const Tile& tile) const {
        return tile.num_tokens * rows_per_token(instruction_) + FETCHING_COST;
    }

    // Whether a thread's part of the tile fits the memory for it.
    bool may_be_cut(const Tile& tile) const {
        constexpr int ROUNDING = 2;  // a part's beginning and its end
        const int64_t share = total_ / num_threads_ / (panel_cost(tile) * CHUNK_PANELS) + ROUNDING;
        const int64_t num_chunks = smaller<int64_t>(share, tile.end_chunk() - tile.first_chunk());
        const int64_t num_rows = tile.num_tokens * rows_per_token(instruction_);
        const int64_t record_bytes = record_size(instruction_.cache.head_size) * sizeof(float);
        return num_chunks * num_rows * record_bytes <= part_bytes_;
    }

    const Attention& instruction_;
    const AttentionGroup& group_;
    Span limits_;
    int num_threads_;
    int64_t part_bytes_;
    int64_t total_ = 0, greatest_cost_ = 0, num_tiles_ = 0;
};

// One thread's chunks of one tile.
struct Part {
    Tile tile;
    int64_t begin;  // of the tile, on the line
    int first_chunk, end_chunk;

    bool begins_tile() const { return first_chunk == tile.first_chunk(); }

    bool ends_tile() const { return end_chunk == tile.end_chunk(); }
};

// A thread's parts where threads take them from a queue: whole tiles.
class QueuedTiles {
  public:
    QueuedTiles(const Division& division, Worker& worker)
        : division_(division), queue_(worker, division.num_tiles()) {}

    // Set `part` to the next one. False, and `part` is as it was, when there is none.
    bool next(Part& part) {
        const int64_t index = queue_.next();
        if (index == division_.num_tiles()) {
            return false;
        }
        if (index < first_) {
            request_ = 0;
            first_ = 0;
        }
        while (index - first_ >= num_tiles()) {
            first_ += num_tiles();
            ++request_;
        }
        const int per_head = division_.num_tiles(request_), number = static_cast<int>(index - first_);
        const Tile tile = division_.tile(request_, number / per_head, number % per_head);
        part = {tile, 0, tile.first_chunk(), tile.end_chunk()};
        return true;
    }

  private:
    int64_t num_tiles() const { return division_.num_tiles(request_) * division_.num_kv_heads(); }

    const Division& division_;
    WorkQueue queue_;
    int request_ = 0;
    int64_t first_ = 0;  // number of the request's first tile
};

// A thread's parts of equal cost, in order: requests, their KV heads, their tiles.
class EqualParts {
  public:
    EqualParts(const Division& division, int thread) : division_(division), thread_(thread) {
        while (request_ < division.num_requests() &&
               position_ + division.cost(request_) <= division.boundary(thread)) {
            position_ += division.cost(request_);
            ++request_;
        }
    }

    // Set `part` to the next one. False, and `part` is as it was, when there is none.
    bool next(Part& part) {
        while (request_ < division_.num_requests() && position_ < division_.boundary(thread_ + 1)) {
            if (tile_ == division_.num_tiles(request_)) {
                end_head();
                continue;
            }
            const Tile tile = division_.tile(request_, kv_head_, tile_);
            const Part found{tile, position_, division_.first_chunk(tile, position_, thread_),
                             division_.first_chunk(tile, position_, thread_ + 1)};
            position_ += division_.cost(tile);
            ++tile_;
            if (found.first_chunk < found.end_chunk) {
                part = found;
                return true;
            }
        }
        return false;
    }

  private:
    void end_head() {
        tile_ = 0;
        ++kv_head_;
        if (kv_head_ == division_.num_kv_heads()) {
            kv_head_ = 0;
            ++request_;
        }
    }

    const Division& division_;
    int thread_;
    int request_ = 0, kv_head_ = 0, tile_ = 0;
    int64_t position_ = 0;  // on the line, of the tile that is next
};

}  // namespace octavo::OCTAVO_ISA
