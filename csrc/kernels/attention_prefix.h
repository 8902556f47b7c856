// The prefix that all requests of a step share, attended to in advance.
//
// A tile's rows are one request's, and few where it runs few tokens: then fetching K and V is most of the
// work. K and V of a shared prefix need not be fetched once for each request. So a first pass attends to the
// whole chunks of the prefix with the rows of all requests side by side, as if all tokens belonged to one
// request and followed the prefix. It keeps the rows' records in shared scratch. A second pass goes on from
// these records:
//
//   request 0   | chunk 0 | chunk 1 | ...
//   request 1   | chunk 0 | chunk 1 |  ...
//   request 2   | chunk 0 | chunk 1 |....
//               |--- first pass ----|- second -
//
// A row still goes through the same chunks in the same order, so its bits stay the same.
#pragma once

#include "kernels/attention_division.h"

namespace octavo::OCTAVO_ISA {

constexpr int END = 0x7fffffff;  // of all contexts

// Numbers that may be kept in shared scratch between two passes. The memory is reserved, and touched only
// when used.
constexpr int64_t MOST_KEPT = 16 << 20;

// One way through the tokens of a step.
struct Pass {
    AttentionGroup group;
    Span limits;         // of each context, the range that is attended to
    uint8_t* parts;      // shared memory for parts of tiles
    int64_t part_bytes;  // of each thread
    float* kept;         // [T, num_heads, record_size], shared: records between two passes

    bool is_first() const { return limits.begin == 0; }

    bool is_last() const { return limits.end == END; }
};

// The tokens of all requests of a group as one request's, which follow the `prefix` that all have.
struct AllAsOne {
    int32_t starts[2], seq_len;

    AllAsOne(const AttentionGroup& group, int prefix)
        : starts{0, group.query_start_loc[group.num_reqs]}, seq_len(prefix + starts[1]) {}

    AttentionGroup group(const AttentionGroup& of) const {
        return {1, of.block_table_stride, starts, &seq_len, of.block_table, of.slot_mapping, 0};
    }
};

// Numbers that are kept between two passes.
OCTAVO_INLINE int64_t num_kept(const Attention& instruction, int64_t num_tokens) {
    return num_tokens * instruction.num_heads * record_size(instruction.cache.head_size);
}

// In units of what computing a row over 16 tokens costs: to keep a record and take it up again, and for each
// thread to wait once more. Measured with 2 to 32 requests and prefixes of 128 to 1024 tokens: keeping takes
// 3 to 5 units, and about as many are lost where threads end at different times.
constexpr int KEEPING_COST = 8, WAITING_COST = 50;

// How many tokens of the prefix that all requests share to attend to in advance; 0 if it does not pay.
inline int tokens_in_advance(const Attention& instruction, const AttentionGroup& group, int num_threads) {
    const int num_chunks = instruction.window > 0 ? 0 : group.num_common_tokens / CHUNK;
    const int num_tokens = group.query_start_loc[group.num_reqs];
    if (num_chunks == 0 || num_kept(instruction, num_tokens) > MOST_KEPT) {
        return 0;
    }
    int64_t num_fewer = -Division::num_tiles(instruction, num_tokens);
    for (int request = 0; request < group.num_reqs; ++request) {
        const int* starts = group.query_start_loc + request;
        num_fewer += Division::num_tiles(instruction, starts[1] - starts[0]);
    }
    const int64_t num_fetched = num_fewer * instruction.cache.num_kv_heads * num_chunks * CHUNK_PANELS;
    const int64_t num_rows = int64_t{num_tokens} * instruction.num_heads;
    const int64_t saved = num_fetched * FETCHING_COST;
    return saved > num_rows * KEEPING_COST + num_threads * WAITING_COST ? num_chunks * CHUNK : 0;
}

}  // namespace octavo::OCTAVO_ISA
