#include "kernels/attention.h"

#include "kernels/attention_chunk.h"
#include "kernels/attention_division.h"
#include "kernels/attention_tiles.h"
#include "kernels/attention_vectors.h"
#include "kernels/fp8.h"
#include "kernels/kv_pages.h"
#include "kernels/pieces.h"

namespace octavo::OCTAVO_ISA {

namespace {

// Of the shared scratch. With less than it takes, fewer tiles are divided.
constexpr int64_t MOST_SCRATCH_BYTES = 64 << 20;

// What one thread does. Chunks: how it computes them; fp8 as bf16.
template <class Chunks>
class AttentionThread {
    using Operand = typename Chunks::Operand;
    static constexpr int MAX_ROWS = Chunks::MAX_ROWS;

  public:
    AttentionThread(const Attention& instruction, const Step& step, const Worker& worker)
        : instruction_(instruction),
          cache_(instruction.cache),
          group_(step.groups.data()[instruction.group]),
          step_(step),
          thread_(worker.index),
          rows_per_token_(Division::rows_per_token(instruction)),
          record_size_(record_size(instruction.cache.head_size)),
          part_bytes_(step.shared_scratch_bytes / worker.count / 64 * 64),
          division_(instruction, group_, worker.count, part_bytes_),
          chunks_(instruction.cache.head_size) {
        const int64_t num_rows = Division::tile_tokens(instruction) * rows_per_token_;
        Pieces scratch(worker.scratch);
        queries_ = scratch.take<Operand>(num_rows * MAX_HEAD_SIZE);
        seen_ = scratch.take<Span>(num_rows);
        records_ = scratch.take<float>(num_rows * record_size_);
        block_records_ = scratch.take<float>(MAX_ROWS * record_size_);
        keys_ = scratch.take<uint16_t>(CHUNK * cache_.head_size);
        values_ = scratch.take<uint16_t>(CHUNK * cache_.head_size);
    }

    void compute(Worker& worker) {
        if (division_.has_many_tiles()) {
            compute_parts(TurnsAtTiles(division_, worker));
        } else {
            compute_parts(EqualParts(division_, thread_));
            worker.wait();
            take_over();
        }
    }

  private:
    // A tile that others go on with is kept for `take_over`.
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

    // Fold what other threads made of the last tile's other chunks, once all have computed their parts.
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
        write(tile);
    }

    // Where `thread` leaves the records of a tile that it does not begin: of each chunk, of each row.
    float* part_records(int thread) const {
        return reinterpret_cast<float*>(step_.shared_scratch + thread * part_bytes_);
    }

    void compute(const Part& part, const Part* next) {
        const Tile& tile = part.tile;
        const int num_rows = tile.num_tokens * rows_per_token_;
        begin(tile);
        GroupPage pages[CHUNK_GROUPS], ahead[CHUNK_GROUPS];
        find(tile, part.first_chunk, pages);
        float* others = part_records(thread_);
        for (int chunk = part.first_chunk; chunk < part.end_chunk; ++chunk) {
            if (chunk + 1 < part.end_chunk) {
                find(tile, chunk + 1, ahead);
            } else if (next != nullptr) {
                find(next->tile, next->first_chunk, ahead);
            } else {
                __builtin_memcpy(ahead, pages, sizeof pages);
            }
            compute_chunk(tile, chunk, pages, ahead, part.begins_tile() ? nullptr : others);
            others += num_rows * record_size_;
            __builtin_memcpy(pages, ahead, sizeof pages);
        }
        if (part.begins_tile() && part.ends_tile()) {
            write(tile);
        }
    }

    // Take the tile's queries as operands and begin its records. A sink is a token that all saw before the
    // first and that has no value.
    void begin(const Tile& tile) {
        const int head_size = cache_.head_size;
        for (int row = 0; row < tile.num_tokens * rows_per_token_; ++row) {
            const float* q = query_row(instruction_.q, tile, row);
            for (int d = 0; d < head_size; d += GROUP) {
                store_operands(queries_ + row * MAX_HEAD_SIZE + d, load(q + d));
            }
            float* record = records_ + row * record_size_;
            clear_record(record, head_size);
            if (instruction_.sinks != nullptr) {
                const float sink = instruction_.sinks[head_of(tile, row)];
                store(record + head_size, splat(1.0f / GROUP));  // 1 in all
                store(record + head_size + GROUP, splat(sink * LOG2_E));
            }
        }
    }

    // Fold the chunk into the tile's records, or if there are `others` write its records there.
    void compute_chunk(const Tile& tile, int index, const GroupPage* pages, const GroupPage* ahead,
                       float* others) {
        const int num_rows = tile.num_tokens * rows_per_token_;
        for (int row = 0; row < num_rows; ++row) {
            const Span seen = seen_from(instruction_, tile.position + row / rows_per_token_, tile.seq_len);
            seen_[row] = {larger(seen.begin - index * CHUNK, 0), smaller(seen.end - index * CHUNK, CHUNK)};
        }
        GroupPage copies[CHUNK_GROUPS];
        if (cache_.type == KVType::fp8_e4m3) {
            unpack(pages, ahead, Chunks::groups(seen_, num_rows), copies);
            pages = ahead = copies;
        } else if (chunks_.takes_pairs()) {
            join_values(pages, Chunks::groups(seen_, num_rows), copies);
            pages = copies;
        }
        const int num_blocks = (num_rows + MAX_ROWS - 1) / MAX_ROWS;
        for (int block = 0; block < num_blocks; ++block) {
            const int begin = num_rows * block / num_blocks, end = num_rows * (block + 1) / num_blocks;
            float* out = others != nullptr ? others + begin * record_size_ : block_records_;
            const Chunk chunk{pages, block == 0 ? ahead : pages, cache_.head_size,
                              cache_.type == KVType::fp8_e4m3, instruction_.soft_cap};
            chunks_.attend(end - begin, queries_ + begin * MAX_HEAD_SIZE, chunk, seen_ + begin, out);
            for (int row = begin; others == nullptr && row < end; ++row) {
                fold_record(records_ + row * record_size_, out + (row - begin) * record_size_,
                            cache_.head_size);
            }
        }
    }

    // The pages of a chunk. A group that no row of the tile sees need not be there: the nearest stands for
    // it.
    void find(const Tile& tile, int chunk, GroupPage* pages) const {
        const int32_t* blocks = group_.block_table + tile.request * group_.block_table_stride;
        const Span groups = groups_of(tile.context);
        const int first = chunk * CHUNK_GROUPS;
        int token = larger(first, groups.begin) * GROUP;
        int block = token / cache_.block_size, offset = token % cache_.block_size;
        for (int i = 0; i < CHUNK_GROUPS; ++i) {
            pages[i] = group_page(cache_, blocks[block], offset, tile.kv_head);
            if (first + i >= groups.begin && first + i + 1 < groups.end) {
                offset += GROUP;
                if (offset == cache_.block_size) {
                    offset = 0;
                    ++block;
                }
            }
        }
    }

    // `groups` of a chunk of fp8 as bf16. The scales stay where they are.
    void unpack(const GroupPage* pages, const GroupPage* ahead, Span groups, GroupPage* unpacked) {
        const int size = GROUP * cache_.head_size;
        for (int i = groups.begin; i < groups.end; ++i) {
            for (int j = 0; j < size; j += 64) {
                prefetch(ahead[i].keys + j);
                prefetch(ahead[i].values + j);
            }
            uint16_t *keys = keys_ + i * size, *values = values_ + i * size;
            fp8_to_bf16(pages[i].keys, size, keys);
            fp8_to_bf16(pages[i].values, size, values);
            unpacked[i] = {reinterpret_cast<uint8_t*>(keys), reinterpret_cast<uint8_t*>(values),
                           pages[i].key_scales, pages[i].value_scales};
        }
    }

    // `groups` of a chunk of bf16 so that V of two lies together. They do already in blocks of a
    // multiple of 32 tokens.
    void join_values(const GroupPage* pages, Span groups, GroupPage* joined) {
        const int size = GROUP * cache_.head_size;
        for (int i = groups.begin; i < groups.end; i += 2) {
            joined[i] = pages[i];
            joined[i + 1] = pages[i + 1];
            if (pages[i + 1].values - pages[i].values != size * 2) {
                uint16_t* values = values_ + i * size;
                __builtin_memcpy(values, pages[i].values, size * 2);
                __builtin_memcpy(values + size, pages[i + 1].values, size * 2);
                joined[i].values = reinterpret_cast<uint8_t*>(values);
                joined[i + 1].values = reinterpret_cast<uint8_t*>(values + size);
            }
        }
    }

    void write(const Tile& tile) const {
        for (int row = 0; row < tile.num_tokens * rows_per_token_; ++row) {
            const float* record = records_ + row * record_size_;
            const f32x16 factor = splat(1.0f / reduce_add(load(record + cache_.head_size)));
            float* out = query_row(instruction_.out, tile, row);
            for (int d = 0; d < cache_.head_size; d += GROUP) {
                store(out + d, load(record + d) * factor);
            }
        }
    }

    int head_of(const Tile& tile, int row) const {
        return tile.kv_head * rows_per_token_ + row % rows_per_token_;
    }

    float* query_row(const View& view, const Tile& tile, int row) const {
        return step_.row(view, tile.token + row / rows_per_token_) + head_of(tile, row) * cache_.head_size;
    }

    const Attention& instruction_;
    const KVCache& cache_;
    const AttentionGroup& group_;
    const Step& step_;
    int thread_, rows_per_token_, record_size_;
    int64_t part_bytes_;
    Division division_;
    Chunks chunks_;

    Operand* queries_;      // [rows of a tile, MAX_HEAD_SIZE]
    Span* seen_;            // [rows of a tile], of the chunk at hand
    float* records_;        // [rows of a tile, record_size]
    float* block_records_;  // [MAX_ROWS, record_size]
    uint16_t* keys_;        // a chunk's K, unpacked
    uint16_t* values_;      // a chunk's V, unpacked or together

    Part last_part_{};
    bool leads_others_ = false;  // who go on with the tile of the last part
};

#if defined(OCTAVO_ISA_amx)
using ChunksOfBf16 = AttentionTiles;
#elif defined(__AVX512BF16__)
using ChunksOfBf16 = AttentionVectors<Bf16Pairs>;
#else
using ChunksOfBf16 = AttentionVectors<Bf16AsFloat32>;
#endif

}  // namespace

void attention(const Attention& instruction, const Step& step, Worker& worker) {
    if (instruction.cache.type == KVType::f32) {
        AttentionThread<AttentionVectors<Float32>>(instruction, step, worker).compute(worker);
    } else {
        AttentionThread<ChunksOfBf16>(instruction, step, worker).compute(worker);
    }
}

// Enough to divide what one request can hold of the cache evenly, whatever its tokens.
int64_t attention_scratch_bytes(const Attention& instruction, int64_t num_tokens, int num_threads) {
    if (num_threads == 1) {
        return 0;
    }
    const KVCache& cache = instruction.cache;
    const int64_t tokens = smaller<int64_t>(num_tokens, Division::tile_tokens(instruction));
    const int64_t chunk_bytes =
        tokens * Division::rows_per_token(instruction) * record_size(cache.head_size) * 4;
    const int64_t num_chunks = cache.num_blocks * cache.block_size / CHUNK + 1;
    const int64_t share = smaller(num_chunks, num_chunks * cache.num_kv_heads / num_threads + 2);
    return smaller(round_up(share * chunk_bytes, 64) * num_threads, MOST_SCRATCH_BYTES);
}

}  // namespace octavo::OCTAVO_ISA
