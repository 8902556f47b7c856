// Threads that sample from one row together: how they divide it, and how they exchange what they find.
//
// A row is divided into chunks, and these into segments, always at the same tokens: a sum is taken within a
// chunk, then over the chunks in their order, and so has the same bits however many threads there are.
#pragma once

#include <cmath>

#include "kernels/sampling.h"
#include "kernels/simd.h"

namespace octavo::OCTAVO_ISA {

constexpr int SEGMENT_TOKENS = 64;  // four vectors, whose latencies overlap
static_assert(CHUNK_TOKENS % SEGMENT_TOKENS == 0, "segments don't cross chunks");

inline int64_t num_chunks(int64_t size) {
    return (size + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
}

// Threads that work on one row together, and their scratch: one thread, or all of them.
struct Team {
    Worker worker;
    float* adjusted;
    uint64_t* entries;
    uint64_t* sorted;
    // Used in turn: while some still read what was found last, others already write what they find next.
    uint8_t* partials[2];
    int turn = 0;

    Team(const SampleArguments& a, const Worker& members, int part)
        : worker(members),
          adjusted(a.scratch.adjusted + part * a.vocab_size),
          entries(a.scratch.entries + part * a.vocab_size),
          sorted(a.scratch.sorted + part * a.vocab_size) {
        const int64_t bytes = a.scratch.num_partials * PARTIAL_BYTES;
        partials[0] = a.scratch.partials + 2 * part * bytes;
        partials[1] = partials[0] + bytes;
    }

    bool leads() const { return worker.index == 0; }

    // This thread's part of a row: whole chunks, and the same ones every time.
    Range tokens(int64_t size) const {
        const Range chunks = share(num_chunks(size), worker);
        return {chunks.begin * CHUNK_TOKENS, smaller(chunks.end * CHUNK_TOKENS, size)};
    }

    template <class T>
    T* next_partials() {
        static_assert(sizeof(T) <= PARTIAL_BYTES, "a partial must hold it");
        turn = 1 - turn;
        return reinterpret_cast<T*>(partials[turn]);
    }

    // Returns the leader's `given` to every thread.
    template <class T>
    T broadcast(const T& given) {
        T* shared = next_partials<T>();
        if (leads()) {
            *shared = given;
        }
        worker.wait();
        return *shared;
    }
};

// The result of `find` for each chunk (a range of tokens), by all threads together: [num_chunks(size)].
template <class T, class Find>
const T* for_each_chunk(int64_t size, Team& team, const Find& find) {
    T* partials = team.next_partials<T>();
    const Range chunks = share(num_chunks(size), team.worker);
    for (int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
        partials[chunk] = find(Range{chunk * CHUNK_TOKENS, smaller((chunk + 1) * CHUNK_TOKENS, size)});
    }
    team.worker.wait();
    return partials;
}

// The sum of the results of `find` for all chunks.
template <class T, class Find>
T sum_over_chunks(int64_t size, Team& team, const Find& find) {
    const T* partials = for_each_chunk<T>(size, team, find);
    T sum = 0;
    for (int64_t chunk = 0; chunk < num_chunks(size); ++chunk) {
        sum += partials[chunk];
    }
    return sum;
}

// Call `use` with each segment of `tokens` and the id of its first token. The last segment is filled up with
// -inf.
template <class Use>
OCTAVO_INLINE void for_each_segment(const float* logits, Range tokens, const Use& use) {
    float padded[SEGMENT_TOKENS];
    for (int64_t first = tokens.begin; first < tokens.end; first += SEGMENT_TOKENS) {
        const float* segment = logits + first;
        if (tokens.end - first < SEGMENT_TOKENS) {
            for (int64_t i = 0; i < SEGMENT_TOKENS; ++i) {
                padded[i] = first + i < tokens.end ? logits[first + i] : -INFINITY;
            }
            segment = padded;
        }
        use(segment, first);
    }
}

OCTAVO_INLINE float largest_of_segment(const float* segment) {
    const f32x16 low = max(load(segment), load(segment + LANES));
    const f32x16 high = max(load(segment + 2 * LANES), load(segment + 3 * LANES));
    return reduce_max(max(low, high));
}

}  // namespace octavo::OCTAVO_ISA
