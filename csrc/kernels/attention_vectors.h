// Attention of a few rows over one chunk with vectors: a lane is a token of K, a column of V.
#pragma once

#include "kernels/attention_chunk.h"

namespace octavo::OCTAVO_ISA {

// What fits the registers: sums of ROWS x key_panels(ROWS), or of ROWS x VALUE_VECTORS, a vector for each
// column of them, and a splat. Few rows take more columns: enough sums at work to hide the latency.
#if defined(__AVX512F__)
constexpr int VECTOR_ROWS = 6;
constexpr int VALUE_VECTORS = 4;

constexpr int key_panels(int rows) {
    return rows <= 2 ? 8 : 4;
}
#else
constexpr int VECTOR_ROWS = 3;
constexpr int VALUE_VECTORS = 1;

constexpr int key_panels(int) {
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

// scores [ROWS][CHUNK] of `panels` = queries [ROWS][MAX_HEAD_SIZE] times K.
template <class Element, int ROWS>
__attribute__((noinline)) void score(const typename Element::Operand* queries, const Chunk& chunk,
                                     Span panels, float* scores) {
    using Number = typename Element::Number;
    constexpr int KEY_PANELS = key_panels(ROWS), WIDTH = NEIGHBOURS<Number>;
    const int head_size = chunk.head_size;
    for (int begin = panels.begin; begin < panels.end; begin += KEY_PANELS) {
        const Number *keys[KEY_PANELS], *ahead[KEY_PANELS];
        f32x16 sums[ROWS][KEY_PANELS];
        for (int w = 0; w < KEY_PANELS; ++w) {
            const int panel = smaller(begin + w, panels.end - 1);  // the last one again, rather than fewer
            keys[w] = reinterpret_cast<const Number*>(chunk.kv[panel].keys);
            ahead[w] = reinterpret_cast<const Number*>(chunk.fetched_beside(panel).keys);
            for (int row = 0; row < ROWS; ++row) {
                sums[row][w] = zeros();
            }
        }
        for (int d = 0; d < head_size; d += WIDTH) {
            for (int w = 0; w < KEY_PANELS; ++w) {
                prefetch(ahead[w] + d * KV_PANEL);
            }
            multiply<Element, ROWS, KEY_PANELS>([&](int w) { return keys[w] + d * KV_PANEL; },
                                                [&](int row) { return queries + row * MAX_HEAD_SIZE + d; },
                                                sums);
        }
        for (int w = 0; w < KEY_PANELS; ++w) {
            for (int row = 0; row < ROWS; ++row) {
                store(scores + row * CHUNK + smaller(begin + w, panels.end - 1) * KV_PANEL, sums[row][w]);
            }
        }
    }
}

// VECTORS x 16 of the values in each row's record, from number `d` on = weights [ROWS][CHUNK] times V.
template <class Element, int ROWS, int VECTORS>
__attribute__((noinline)) void weigh(const typename Element::Operand* weights, const Chunk& chunk,
                                     Span panels, int d, float* records) {
    using Number = typename Element::Number;
    constexpr int WIDTH = NEIGHBOURS<Number>;
    const int head_size = chunk.head_size;
    f32x16 sums[ROWS][VECTORS];
    for (int row = 0; row < ROWS; ++row) {
        for (int w = 0; w < VECTORS; ++w) {
            sums[row][w] = zeros();
        }
    }
    for (int panel = panels.begin; panel < panels.end; ++panel) {
        const Number* values = reinterpret_cast<const Number*>(chunk.kv[panel].values) + d * WIDTH;
        const Number* ahead = reinterpret_cast<const Number*>(chunk.fetched_beside(panel).values) + d * WIDTH;
        for (int token = 0; token < KV_PANEL; token += WIDTH) {
            const int first = token * head_size;
            for (int w = 0; w < VECTORS; ++w) {
                prefetch(ahead + first + w * KV_PANEL * WIDTH);
            }
            multiply<Element, ROWS, VECTORS>(
                [&](int w) { return values + first + w * KV_PANEL * WIDTH; },
                [&](int row) { return weights + row * CHUNK + panel * KV_PANEL + token; }, sums);
        }
    }
    for (int row = 0; row < ROWS; ++row) {
        for (int w = 0; w < VECTORS; ++w) {
            store(records + row * record_size(head_size) + d + w * KV_PANEL, sums[row][w]);
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
    const Span panels = panels_seen(seen, ROWS);
    score<Element, ROWS>(queries, chunk, panels, scores);
    softmax<ROWS>(scores, ROWS, chunk, panels, seen, weights, CHUNK, records);
    int d = 0;
    for (; d + VALUE_VECTORS * KV_PANEL <= chunk.head_size; d += VALUE_VECTORS * KV_PANEL) {
        weigh<Element, ROWS, VALUE_VECTORS>(weights, chunk, panels, d, records);
    }
    for (; d < chunk.head_size; d += KV_PANEL) {
        weigh<Element, ROWS, 1>(weights, chunk, panels, d, records);
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

    static constexpr int strip_rows(int) { return MAX_ROWS; }

    static Span panels(const Span* seen, int num_rows) { return panels_seen(seen, num_rows); }

    static constexpr bool takes_pairs() { return false; }

    // Calls `meanwhile`, then attend_rows for up to MAX_ROWS rows.
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
