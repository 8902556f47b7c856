// Attention of a few rows over one chunk of their context. A row is one query head of one token.
//
// A chunk gives each row a partial result, its softmax over the chunk alone:
//
//   record   [values [head_size], sums [16], reference [16]]
//
//   score     s = q . k in natural units, maybe capped
//   reference 2^reference is what weights are relative to, about e^(greatest score); the same in all lanes
//   weight    2^(s * log2 e - reference), 0 where the row does not attend
//   sums      of weights; each lane has those of every 16th token
//   values    sum of weight * v
//
// What happens to a row in a chunk is the same sequence of operations, whatever rows it is computed beside.
// Groups of 16 tokens that it does not see add exact zeros where V is finite, so they may be computed or not.
// Hence the same bits.
#pragma once

#include "kernels/kv_pages.h"
#include "kernels/simd.h"

namespace octavo::OCTAVO_ISA {

// Tokens; enough to spread what each chunk costs a row, few enough to divide a context among threads.
constexpr int CHUNK = 128;
constexpr int CHUNK_GROUPS = CHUNK / GROUP;

// What fits the registers: sums of ROWS x key_groups(ROWS), or of ROWS x VALUE_VECTORS, a vector for each
// column of them, and a splat. Few rows take more columns: enough sums at work to hide the latency.
#if defined(__AVX512F__)
constexpr int MAX_ROWS = 6;
constexpr int VALUE_VECTORS = 4;

constexpr int key_groups(int rows) {
    return rows <= 2 ? 8 : 4;
}
#else
constexpr int MAX_ROWS = 3;
constexpr int VALUE_VECTORS = 1;

constexpr int key_groups(int) {
    return 1;
}
#endif

constexpr float LOG2_E = 1.44269504f;
constexpr float LOWEST = -0x1.fffffep127f;
constexpr float MINUS_INFINITY = -__builtin_huge_valf();

constexpr int record_size(int head_size) {
    return head_size + 2 * GROUP;
}

// A record of no tokens: whatever it is folded with stays as it is.
OCTAVO_INLINE void clear_record(float* record, int head_size) {
    for (int i = 0; i < head_size + GROUP; i += GROUP) {
        store(record + i, zeros());
    }
    store(record + head_size + GROUP, splat(LOWEST));
}

// Add what a later chunk gave. Chunks are folded one by one, in order.
OCTAVO_INLINE void fold_record(float* record, const float* chunk, int head_size) {
    const f32x16 old_reference = load(record + head_size + GROUP);
    const f32x16 chunk_reference = load(chunk + head_size + GROUP);
    const f32x16 reference = max(old_reference, chunk_reference);
    const f32x16 old_factor = exp2(old_reference - reference);
    const f32x16 chunk_factor = exp2(chunk_reference - reference);
    for (int i = 0; i < head_size + GROUP; i += GROUP) {
        store(record + i, fma(load(record + i), old_factor, load(chunk + i) * chunk_factor));
    }
    store(record + head_size + GROUP, reference);
}

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

    static OCTAVO_INLINE void store(Operand* p, f32x16 x) { store_bf16(p, x); }
};

// What all that multiply float32 have in common.
struct Float32Operands {
    using Operand = float;

    static OCTAVO_INLINE f32x16 splat(const Operand* p) { return OCTAVO_ISA::splat(*p); }

    static OCTAVO_INLINE f32x16 dot(f32x16 sum, f32x16 a, f32x16 b) { return fma(a, b, sum); }

    static OCTAVO_INLINE void store(Operand* p, f32x16 x) { OCTAVO_ISA::store(p, x); }
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

// Processors with AMX, which are Intel's, take 1.8 cycles for a product of pairs and 0.5 for an fma. In
// float32 queries and weights are not even rounded.
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
using Bf16 = Bf16Pairs;
#else
using Bf16 = Bf16AsFloat32;
#endif

// Tokens of a context, or groups of a chunk, from `begin` up to `end`.
struct Span {
    int begin, end;
};

OCTAVO_INLINE Span groups_of(Span tokens) {
    return {tokens.begin / GROUP, (tokens.end + GROUP - 1) / GROUP};
}

// A chunk as it lies in memory, and the one to fetch meanwhile.
struct Chunk {
    const GroupPage* pages;  // [CHUNK_GROUPS]
    const GroupPage* ahead;  // [CHUNK_GROUPS]
    int head_size;
    float soft_cap;  // 0: none
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
            ahead[w] = reinterpret_cast<const Number*>(chunk.ahead[group].keys);
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

// soft_cap * tanh(x / soft_cap)
OCTAVO_INLINE f32x16 capped(f32x16 x, float soft_cap) {
    const f32x16 one = splat(1.0f), two = splat(2.0f);
    return splat(soft_cap) * (one - two / (one + exp(x * splat(2.0f / soft_cap))));
}

// From a row's scores to its weights: 0 for the tokens of `groups` outside `seen`. Completes the row's record
// but for the values.
template <class Element>
OCTAVO_INLINE void softmax(float* scores, const Chunk& chunk, Span groups, Span seen,
                           typename Element::Operand* weights, float* record) {
    const f32x16 nothing = splat(MINUS_INFINITY);
    f32x16 greatest = nothing;
    for (int group = groups.begin; group < groups.end; ++group) {
        f32x16 s = load(scores + group * GROUP);
        if (chunk.pages[group].key_scales != nullptr) {
            s = s * load(chunk.pages[group].key_scales);
        }
        if (chunk.soft_cap != 0) {
            s = capped(s, chunk.soft_cap);
        }
        const int begin = seen.begin - group * GROUP, end = seen.end - group * GROUP;
        if (begin > 0 || end < GROUP) {
            s = select(first_lanes(larger(begin, 0)), nothing,
                       select(first_lanes(larger(end, 0)), s, nothing));
        }
        store(scores + group * GROUP, s);
        greatest = max(s, greatest);
    }
    const float reference = larger(LOWEST, reduce_max(greatest) * LOG2_E);
    f32x16 sums = zeros();
    for (int group = groups.begin; group < groups.end; ++group) {
        f32x16 weight = exp2(fma(load(scores + group * GROUP), splat(LOG2_E), splat(-reference)));
        sums = sums + weight;
        if (chunk.pages[group].value_scales != nullptr) {
            weight = weight * load(chunk.pages[group].value_scales);
        }
        Element::store(weights + group * GROUP, weight);
    }
    store(record + chunk.head_size, sums);
    store(record + chunk.head_size + GROUP, splat(reference));
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
        const Number* ahead = reinterpret_cast<const Number*>(chunk.ahead[group].values) + d * WIDTH;
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
    Span groups = groups_of(seen[0]);
    for (int row = 1; row < ROWS; ++row) {
        const Span others = groups_of(seen[row]);
        groups = {smaller(groups.begin, others.begin), larger(groups.end, others.end)};
    }
    const int size = record_size(chunk.head_size);
    score<Element, ROWS>(queries, chunk, groups, scores);
    for (int row = 0; row < ROWS; ++row) {
        softmax<Element>(scores + row * CHUNK, chunk, groups, seen[row], weights + row * CHUNK,
                         records + row * size);
    }
    int d = 0;
    for (; d + VALUE_VECTORS * GROUP <= chunk.head_size; d += VALUE_VECTORS * GROUP) {
        weigh<Element, ROWS, VALUE_VECTORS>(weights, chunk, groups, d, records);
    }
    for (; d < chunk.head_size; d += GROUP) {
        weigh<Element, ROWS, 1>(weights, chunk, groups, d, records);
    }
}

// As attend_rows, of up to MAX_ROWS.
template <class Element, int ROWS = MAX_ROWS>
void attend(int num_rows, const typename Element::Operand* queries, const Chunk& chunk, const Span* seen,
            float* records) {
    if (num_rows == ROWS) {
        attend_rows<Element, ROWS>(queries, chunk, seen, records);
    } else if constexpr (ROWS > 1) {
        attend<Element, ROWS - 1>(num_rows, queries, chunk, seen, records);
    }
}

}  // namespace octavo::OCTAVO_ISA
