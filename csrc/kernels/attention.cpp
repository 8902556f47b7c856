#include "kernels/attention_chunk.h"
#include "kernels/attention_division.h"
#include "kernels/attention_prefix.h"
#include "kernels/attention_tiles.h"
#include "kernels/attention_vectors.h"
#include "kernels/bump_allocator.h"
#include "kernels/declarations.h"
#include "kernels/fp8.h"
#include "kernels/kv_panels.h"

namespace octavo::OCTAVO_ISA {

namespace {

// Of the shared scratch, for parts of tiles. With less than it takes, fewer tiles are divided.
constexpr int64_t MOST_PART_BYTES = 64 << 20;

// The work of one thread in a pass. `Chunks` is the way it computes chunks; it computes fp8 as bf16.
template <class Chunks>
class AttentionThread {
    using Operand = typename Chunks::Operand;
    using Number = typename Chunks::Number;
    static constexpr int MAX_ROWS = Chunks::MAX_ROWS;

  public:
    AttentionThread(const Attention& instruction, const Step& step, const Pass& pass, const Worker& worker)
        : instruction_(instruction),
          cache_(instruction.cache),
          step_(step),
          pass_(pass),
          thread_(worker.index),
          rows_per_token_(Division::rows_per_token(instruction)),
          record_size_(record_size(instruction.cache.head_size)),
          division_(instruction, pass.group, pass.limits, worker.count, pass.part_bytes),
          chunks_(instruction.cache.head_size) {
        const int64_t num_rows = Division::tile_tokens(instruction) * rows_per_token_;
        BumpAllocator scratch(worker.scratch, static_cast<int64_t>(worker.scratch_bytes));
        queries_ = scratch.allocate<Operand>(num_rows * MAX_HEAD_SIZE);
        seen_ = scratch.allocate<Span>(num_rows);
        records_ = scratch.allocate<float>(num_rows * record_size_);
        strip_records_ = scratch.allocate<float>(MAX_ROWS * record_size_);
        keys_ = scratch.allocate<uint16_t>(CHUNK * cache_.head_size);
        values_ = scratch.allocate<Number>(CHUNK * cache_.head_size);
        value_scales_ = scratch.allocate<float>(CHUNK);
    }

    void compute(Worker& worker) {
        if (division_.has_many_tiles()) {
            compute_parts(QueuedTiles(division_, worker));
        } else {
            compute_parts(EqualParts(division_, thread_));
            worker.wait();
            take_over();
        }
    }

  private:
    // The records of a tile that other threads continue stay in scratch for `take_over`.
    template <class Parts>
    void compute_parts(Parts parts) {
        Part part, next;
        for (bool more = parts.next(part); more; part = next) {
            next = part;
            more = parts.next(next);
            compute(part, more ? &next : nullptr);
            last_part_ = part;
            leads_others_ = part.begins_tile() && !part.ends_tile();
        }
    }

    // Fold the records that other threads computed of the last tile's other chunks. All parts must be
    // computed.
    void take_over() {
        if (!leads_others_) {
            return;
        }
        const Tile& tile = last_part_.tile;
        const int num_rows = tile.num_tokens * rows_per_token_;
        int chunk = last_part_.end_chunk;
        for (int thread = thread_ + 1; chunk < tile.end_chunk(); ++thread) {
            const int end = division_.first_chunk(tile, last_part_.begin, thread + 1);
            const float* records = part_records(thread);
            for (; chunk < end; ++chunk, records += num_rows * record_size_) {
                for (int row = 0; row < num_rows; ++row) {
                    fold_record(records_ + row * record_size_, records + row * record_size_,
                                cache_.head_size);
                }
            }
        }
        end(tile);
    }

    // The records of a tile that `thread` does not begin, for each chunk and row: written by it, read by
    // `take_over`.
    float* part_records(int thread) const {
        return reinterpret_cast<float*>(pass_.parts + thread * pass_.part_bytes);
    }

    void compute(const Part& part, const Part* next) {
        const Tile& tile = part.tile;
        const int num_rows = tile.num_tokens * rows_per_token_;
        begin(tile);
        KVPanel kv[CHUNK_PANELS], ahead[CHUNK_PANELS];
        find(tile, part.first_chunk, kv);
        float* others = part_records(thread_);
        for (int chunk = part.first_chunk; chunk < part.end_chunk; ++chunk) {
            const bool is_last = chunk + 1 == part.end_chunk;
            if (!is_last) {
                find(tile, chunk + 1, ahead);
            } else if (next != nullptr) {
                find(next->tile, next->first_chunk, ahead);
            }
            compute_chunk(tile, chunk, kv, is_last && next == nullptr ? nullptr : ahead,
                          part.begins_tile() ? nullptr : others);
            others += num_rows * record_size_;
            if (!is_last) {
                __builtin_memcpy(kv, ahead, sizeof kv);
            }
        }
        fold_strip();
        if (part.begins_tile() && part.ends_tile()) {
            end(tile);
        }
    }

    // Take the tile's queries as operands and begin its records, or continue the records of the first
    // pass.
    void begin(const Tile& tile) {
        for (int row = 0; row < tile.num_tokens * rows_per_token_; ++row) {
            const float* q = query_row(instruction_.q, tile, row);
            for (int d = 0; d < cache_.head_size; d += LANES) {
                store_operands(queries_ + row * MAX_HEAD_SIZE + d, load(q + d));
            }
            float* record = records_ + row * record_size_;
            if (pass_.is_first()) {
                begin_record(record, head_of(tile, row));
            } else {
                copy_record(kept_record(tile, row), cache_.head_size, record);
            }
        }
    }

    // A sink counts as a token before the first one. Every row sees it, and its value is 0.
    void begin_record(float* record, int head) const {
        const int head_size = cache_.head_size;
        clear_record(record, head_size);
        if (instruction_.sinks != nullptr) {
            store(record + head_size, splat(1.0f / LANES));  // 1 in all
            store(record + head_size + LANES, splat(instruction_.sinks[head] * LOG2_E));
        }
    }

    // Write the tile's output, or after the first of two passes keep its records for the second.
    void end(const Tile& tile) const {
        for (int row = 0; row < tile.num_tokens * rows_per_token_; ++row) {
            const float* record = records_ + row * record_size_;
            if (pass_.is_last()) {
                write(record, query_row(instruction_.out, tile, row));
            } else {
                copy_record(record, cache_.head_size, kept_record(tile, row));
            }
        }
    }

    void write(const float* record, float* out) const {
        const f32x16 factor = splat(1.0f / reduce_add(load(record + cache_.head_size)));
        for (int d = 0; d < cache_.head_size; d += LANES) {
            store(out + d, load(record + d) * factor);
        }
    }

    // Fold the chunk into the tile's records, or if there are `others` write its records there. `kv`: the
    // chunk's panels. They are replaced by the panels to multiply with, some of which are copies. `ahead`:
    // the panels to fetch, or null.
    void compute_chunk(const Tile& tile, int index, KVPanel* kv, const KVPanel* ahead, float* others) {
        const int num_rows = tile.num_tokens * rows_per_token_;
        for (int token = 0; token < tile.num_tokens; ++token) {
            const Span seen = seen_from(instruction_, tile.position + token, tile.seq_len);
            for (int i = 0; i < rows_per_token_; ++i) {
                seen_[token * rows_per_token_ + i] = {larger(seen.begin - index * CHUNK, 0),
                                                      smaller(seen.end - index * CHUNK, CHUNK)};
            }
        }
        const Span panels = Chunks::panels(seen_, num_rows);
        if constexpr (sizeof(Number) == sizeof(uint16_t)) {
            if (cache_.type == KVType::fp8_e4m3) {
                unpack(kv, ahead, panels);
                ahead = nullptr;
            }
        }
        hide_unseen(tile.context, index * CHUNK_PANELS, panels, kv);
        if (chunks_.takes_pairs()) {
            join_values(panels, kv);
        }
        const int strip_rows = Chunks::strip_rows(cache_.head_size);
        const int num_strips = (num_rows + strip_rows - 1) / strip_rows;
        for (int strip = 0; strip < num_strips; ++strip) {
            const int begin = num_rows * strip / num_strips, end = num_rows * (strip + 1) / num_strips;
            float* out = others != nullptr ? others + begin * record_size_ : strip_records_;
            const Span share{CHUNK_PANELS * strip / num_strips, CHUNK_PANELS * (strip + 1) / num_strips};
            const Chunk chunk{kv,
                              ahead,
                              ahead != nullptr ? share : Span{0, 0},
                              cache_.head_size,
                              cache_.type == KVType::fp8_e4m3,
                              instruction_.soft_cap};
            chunks_.attend(end - begin, queries_ + begin * MAX_HEAD_SIZE, chunk, seen_ + begin, out,
                           [this] { fold_strip(); });
            if (others == nullptr) {
                unfolded_ = {begin, end};
            }
        }
    }

    // Fold the last strip's records unless that is done. It is called while the next strip is computed.
    void fold_strip() {
        for (int row = unfolded_.begin; row < unfolded_.end; ++row) {
            fold_record(records_ + row * record_size_,
                        strip_records_ + (row - unfolded_.begin) * record_size_, cache_.head_size);
        }
        unfolded_ = {0, 0};
    }

    // The panels of a chunk. A panel that no row of the tile sees need not be there: the nearest stands for
    // it.
    void find(const Tile& tile, int chunk, KVPanel* kv) const {
        const int32_t* blocks = pass_.group.block_table + tile.request * pass_.group.block_table_stride;
        const Span panels = panels_of(tile.context);
        const int first = chunk * CHUNK_PANELS;
        int token = larger(first, panels.begin) * KV_PANEL;
        int block = token / cache_.block_size, offset = token % cache_.block_size;
        for (int i = 0; i < CHUNK_PANELS; ++i) {
            kv[i] = kv_panel(cache_, blocks[block], offset, tile.kv_head);
            if (first + i >= panels.begin && first + i + 1 < panels.end) {
                offset += KV_PANEL;
                if (offset == cache_.block_size) {
                    offset = 0;
                    ++block;
                }
            }
        }
    }

    // Make `panels` of fp8 bf16. Scales stay where they are.
    void unpack(KVPanel* kv, const KVPanel* ahead, Span panels) {
        const int size = KV_PANEL * cache_.head_size;
        for (int i = panels.begin; i < panels.end; ++i) {
            for (int j = 0; ahead != nullptr && j < size; j += 64) {
                prefetch(ahead[i].keys + j);
                prefetch(ahead[i].values + j);
            }
            uint16_t* keys = keys_ + i * size;
            fp8_to_bf16(kv[i].keys, size, keys);
            fp8_to_bf16(kv[i].values, size, values_of(i));
            kv[i].keys = reinterpret_cast<uint8_t*>(keys);
            kv[i].values = reinterpret_cast<uint8_t*>(values_of(i));
        }
    }

    // Give zeros for V to the tokens of `panels` outside `context`, the first panel of the chunk being panel
    // `first`.
    void hide_unseen(Span context, int first, Span panels, KVPanel* kv) {
        const Span seen_panels = panels_of(context);
        for (int i = panels.begin; i < panels.end; ++i) {
            const int panel = smaller(larger(first + i, seen_panels.begin), seen_panels.end - 1);  // see find
            const Span seen{context.begin - panel * KV_PANEL, context.end - panel * KV_PANEL};
            if (seen.begin > 0 || seen.end < KV_PANEL) {
                hide_values<Number>(kv[i], cache_.head_size, seen, values_of(i),
                                    value_scales_ + i * KV_PANEL);
            }
        }
    }

    // Have V of two panels lie together. They do already in blocks of a multiple of 32 tokens.
    void join_values(Span panels, KVPanel* kv) {
        const int bytes = KV_PANEL * cache_.head_size * static_cast<int>(sizeof(Number));
        for (int i = panels.begin; i < panels.end; i += 2) {
            if (kv[i + 1].values - kv[i].values != bytes) {
                move_values(kv[i], bytes, values_of(i));
                move_values(kv[i + 1], bytes, values_of(i + 1));
            }
        }
    }

    void move_values(KVPanel& panel, int bytes, Number* to) {
        uint8_t* values = reinterpret_cast<uint8_t*>(to);
        if (panel.values != values) {
            __builtin_memcpy(values, panel.values, bytes);
            panel.values = values;
        }
    }

    // Where a copy of V of panel `i` of a chunk lies.
    Number* values_of(int i) const { return values_ + i * KV_PANEL * cache_.head_size; }

    int head_of(const Tile& tile, int row) const {
        return tile.kv_head * rows_per_token_ + row % rows_per_token_;
    }

    float* query_row(const View& view, const Tile& tile, int row) const {
        return step_.row(view, tile.token + row / rows_per_token_) + head_of(tile, row) * cache_.head_size;
    }

    float* kept_record(const Tile& tile, int row) const {
        const int64_t token = tile.token + row / rows_per_token_;
        return pass_.kept + (token * instruction_.num_heads + head_of(tile, row)) * record_size_;
    }

    const Attention& instruction_;
    const KVCache& cache_;
    const Step& step_;
    const Pass& pass_;
    int thread_, rows_per_token_, record_size_;
    Division division_;
    Chunks chunks_;

    Operand* queries_;      // [rows of a tile, MAX_HEAD_SIZE]
    Span* seen_;            // [rows of a tile], of the chunk at hand
    float* records_;        // [rows of a tile, record_size]
    float* strip_records_;  // [MAX_ROWS, record_size]
    uint16_t* keys_;        // a chunk's K, unpacked
    Number* values_;  // copies of a chunk's V: unpacked, joined, or with zeros for tokens that no row sees
    float* value_scales_;  // the copies' scales

    Span unfolded_{};  // rows whose records of a chunk are still in strip_records_
    Part last_part_{};
    bool leads_others_ = false;  // whether other threads continue the tile of the last part
};

#if defined(OCTAVO_ISA_amx)
using ChunksOfBf16 = AttentionTiles;
#elif defined(__AVX512BF16__)
using ChunksOfBf16 = AttentionVectors<Bf16Pairs>;
#else
using ChunksOfBf16 = AttentionVectors<Bf16AsFloat32>;
#endif

// All passes. Between two of them all threads wait: each takes up what others have kept.
template <class Chunks>
void attend(const Attention& instruction, const Step& step, Worker& worker) {
    const AttentionGroup& group = step.groups.data()[instruction.group];
    const int prefix = tokens_in_advance(instruction, group, worker.count);
    BumpAllocator scratch(step.shared_scratch, step.shared_scratch_bytes);
    float* kept = scratch.allocate<float>(prefix > 0 ? num_kept(instruction, step.num_tokens) : 0);
    const int64_t part_bytes = (step.shared_scratch_bytes - scratch.used()) / worker.count / 64 * 64;
    uint8_t* parts = scratch.allocate<uint8_t>(part_bytes * worker.count);
    if (prefix > 0) {
        const AllAsOne all(group, prefix);
        const Pass pass{all.group(group), {0, prefix}, parts, part_bytes, kept};
        AttentionThread<Chunks>(instruction, step, pass, worker).compute(worker);
        worker.wait();
    }
    const Pass pass{group, {prefix, END}, parts, part_bytes, kept};
    AttentionThread<Chunks>(instruction, step, pass, worker).compute(worker);
}

}  // namespace

void attention(const Attention& instruction, const Step& step, Worker& worker) {
    if (instruction.cache.type == KVType::f32) {
        attend<AttentionVectors<Float32>>(instruction, step, worker);
    } else {
        attend<ChunksOfBf16>(instruction, step, worker);
    }
}

// Enough for the records that passes keep, and to divide evenly one request that fills the whole cache,
// however many of its tokens run.
int64_t attention_scratch_bytes(const Attention& instruction, int64_t num_tokens, int num_threads) {
    const KVCache& cache = instruction.cache;
    const int64_t row_bytes = record_size(cache.head_size) * sizeof(float);
    const int64_t kept = smaller(num_kept(instruction, num_tokens), MOST_KEPT) * sizeof(float);
    if (num_threads == 1) {
        return kept;
    }
    const int64_t tokens = smaller<int64_t>(num_tokens, Division::tile_tokens(instruction));
    const int64_t chunk_bytes = tokens * Division::rows_per_token(instruction) * row_bytes;
    const int64_t num_chunks = cache.num_blocks * cache.block_size / CHUNK + 1;
    const int64_t share = smaller(num_chunks, num_chunks * cache.num_kv_heads / num_threads + 2);
    return kept + smaller(round_up(share * chunk_bytes, 64) * num_threads, MOST_PART_BYTES);
}

}  // namespace octavo::OCTAVO_ISA
