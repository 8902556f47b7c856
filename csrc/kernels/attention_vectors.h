// Attention of a few rows over one chunk with vectors: a lane is a token of K, a column of V.
#pragma once

#include "kernels/attention_chunk.h"

namespace octavo::OCTAVO_ISA {

// What fits the registers: sums of ROWS x key_groups(ROWS), or of ROWS x VALUE_VECTORS, a vector for each
// column of them, and a splat. Few rows take more columns: enough sums at work to hide the latency.
#if defined(__AVX512F__)
constexpr int VECTOR_ROWS = 6;
constexpr int VALUE_VECTORS = 4;

constexpr int key_groups(int rows) {
    return rows <= 2 ? 8 : 4;
}
#else
constexpr int VECTOR_ROWS = 3;
constexpr int VALUE_VECTORS = 1;

constexpr int key_groups(int) {
    return 1;
}
#endif

// How K and V are multiplied with queries and weights. Neighbours, the numbers of the cache that share a
// lane, are taken in PARTS: part i of a vector goes with the operand i behind the first.

// Pairs of bf16 times pairs of bf16, in one instruction.
struct Bf16Pairs {
    using Number = uint16_t;   // of K and V
    using Operand = uint16_t;  // of queries and weights
    static constexpr int PARTS = 1;

    static OCTAVO_INLINE bytes64 load(const Number* p, int) { return load_pairs(p); }

    static OCTAVO_INLINE bytes64 splat(const Operand* p) { return splat_pair(p); }

    static OCTAVO_INLINE f32x16 dot(f32x16 sum, bytes64 a, bytes64 b) { return dot_pairs(sum, a, b); }
};

// What all that multiply float32 have in common.
struct Float32Operands {
    using Operand = float;

    static OCTAVO_INLINE f32x16 splat(const Operand* p) { return OCTAVO_ISA::splat(*p); }

    static OCTAVO_INLINE f32x16 dot(f32x16 sum, f32x16 a, f32x16 b) { return fma(a, b, sum); }
};

struct Bf16AsFloat32 : Float32Operands {
    using Number = uint16_t;
    static constexpr int PARTS = 2;

    static OCTAVO_INLINE f32x16 load(const Number* p, int part) {
        return part == 0 ? first_of_pairs(load_pairs(p)) : second_of_pairs(load_pairs(p));
    }
};

struct Float32 : Float32Operands {
    using Number = float;
    static constexpr int PARTS = 1;

    static OCTAVO_INLINE f32x16 load(const Number* p, int) { return OCTAVO_ISA::load(p); }
};

// sums[row][w] += the vector of K or V at numbers(w) times the operand at operands(row).
template <class Element, int ROWS, int VECTORS, class Numbers, class Operands>
OCTAVO_INLINE void multiply(Numbers numbers, Operands operands, f32x16 (&sums)[ROWS][VECTORS]) {
    for (int part = 0; part < Element::PARTS; ++part) {
        decltype(Element::load(numbers(0), 0)) vectors[VECTORS];
        for (int w = 0; w < VECTORS; ++w) {
            vectors[w] = Element::load(numbers(w), part);
        }
        for (int row = 0; row < ROWS; ++row) {
            const auto operand = Element::splat(operands(row) + part);
            for (int w = 0; w < VECTORS; ++w) {
                sums[row][w] = Element::dot(sums[row][w], vectors[w], operand);
            }
        }
    }
}

// scores [ROWS][CHUNK] of `groups` = queries [ROWS][MAX_HEAD_SIZE] times K.
template <class Element, int ROWS>
__attribute__((noinline)) void score(const typename Element::Operand* queries, const Chunk& chunk,
                                     Span groups, float* scores) {
    using Number = typename Element::Number;
    constexpr int KEY_GROUPS = key_groups(ROWS), WIDTH = NEIGHBOURS<Number>;
    const int head_size = chunk.head_size;
    for (int begin = groups.begin; begin < groups.end; begin += KEY_GROUPS) {
        const Number *keys[KEY_GROUPS], *ahead[KEY_GROUPS];
        f32x16 sums[ROWS][KEY_GROUPS];
        for (int w = 0; w < KEY_GROUPS; ++w) {
            const int group = smaller(begin + w, groups.end - 1);  // the last one again, rather than fewer
            keys[w] = reinterpret_cast<const Number*>(chunk.pages[group].keys);
            ahead[w] = reinterpret_cast<const Number*>(chunk.fetched_beside(group).keys);
            for (int row = 0; row < ROWS; ++row) {
                sums[row][w] = zeros();
            }
        }
        for (int d = 0; d < head_size; d += WIDTH) {
            for (int w = 0; w < KEY_GROUPS; ++w) {
                prefetch(ahead[w] + d * GROUP);
            }
            multiply<Element, ROWS, KEY_GROUPS>([&](int w) { return keys[w] + d * GROUP; },
                                                [&](int row) { return queries + row * MAX_HEAD_SIZE + d; },
                                                sums);
        }
        for (int w = 0; w < KEY_GROUPS; ++w) {
            for (int row = 0; row < ROWS; ++row) {
                store(scores + row * CHUNK + smaller(begin + w, groups.end - 1) * GROUP, sums[row][w]);
            }
        }
    }
}

// VECTORS x 16 of the values in each row's record, from number `d` on = weights [ROWS][CHUNK] times V.
template <class Element, int ROWS, int VECTORS>
__attribute__((noinline)) void weigh(const typename Element::Operand* weights, const Chunk& chunk,
                                     Span groups, int d, float* records) {
    using Number = typename Element::Number;
    constexpr int WIDTH = NEIGHBOURS<Number>;
    const int head_size = chunk.head_size;
    f32x16 sums[ROWS][VECTORS];
    for (int row = 0; row < ROWS; ++row) {
        for (int w = 0; w < VECTORS; ++w) {
            sums[row][w] = zeros();
        }
    }
    for (int group = groups.begin; group < groups.end; ++group) {
        const Number* values = reinterpret_cast<const Number*>(chunk.pages[group].values) + d * WIDTH;
        const Number* ahead = reinterpret_cast<const Number*>(chunk.fetched_beside(group).values) + d * WIDTH;
        for (int token = 0; token < GROUP; token += WIDTH) {
            const int first = token * head_size;
            for (int w = 0; w < VECTORS; ++w) {
                prefetch(ahead + first + w * GROUP * WIDTH);
            }
            multiply<Element, ROWS, VECTORS>(
                [&](int w) { return values + first + w * GROUP * WIDTH; },
                [&](int row) { return weights + row * CHUNK + group * GROUP + token; }, sums);
        }
    }
    for (int row = 0; row < ROWS; ++row) {
        for (int w = 0; w < VECTORS; ++w) {
            store(records + row * record_size(head_size) + d + w * GROUP, sums[row][w]);
        }
    }
}

// The records of ROWS rows, whose queries lie one after the other, over a chunk of which each sees
// `seen[row]`.
template <class Element, int ROWS>
void attend_rows(const typename Element::Operand* queries, const Chunk& chunk, const Span* seen,
                 float* records) {
    alignas(64) float scores[ROWS * CHUNK];
    alignas(64) typename Element::Operand weights[ROWS * CHUNK];
    const Span groups = groups_seen(seen, ROWS);
    score<Element, ROWS>(queries, chunk, groups, scores);
    softmax<ROWS>(scores, ROWS, chunk, groups, seen, weights, CHUNK, records);
    int d = 0;
    for (; d + VALUE_VECTORS * GROUP <= chunk.head_size; d += VALUE_VECTORS * GROUP) {
        weigh<Element, ROWS, VALUE_VECTORS>(weights, chunk, groups, d, records);
    }
    for (; d < chunk.head_size; d += GROUP) {
        weigh<Element, ROWS, 1>(weights, chunk, groups, d, records);
    }
}

// How AttentionThread computes a chunk.
template <class Element>
class AttentionVectors {
  public:
    using Number = typename Element::Number;
    using Operand = typename Element::Operand;
    static constexpr int MAX_ROWS = VECTOR_ROWS;

    explicit AttentionVectors(int) {}

    static constexpr int block_rows(int) { return MAX_ROWS; }

    static Span groups(const Span* seen, int num_rows) { return groups_seen(seen, num_rows); }

    static constexpr bool takes_pairs() { return false; }

    // As attend_rows, of up to MAX_ROWS, after what is to be done `meanwhile`.
    template <int ROWS = MAX_ROWS, class Meanwhile>
    void attend(int num_rows, const Operand* queries, const Chunk& chunk, const Span* seen, float* records,
                Meanwhile meanwhile) {
        if (num_rows == ROWS) {
            meanwhile();
            attend_rows<Element, ROWS>(queries, chunk, seen, records);
        } else if constexpr (ROWS > 1) {
            attend<ROWS - 1>(num_rows, queries, chunk, seen, records, meanwhile);
        }
    }
};

}  // namespace octavo::OCTAVO_ISA
