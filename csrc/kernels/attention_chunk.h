// Attention of a few rows over one chunk of their context. A row is one query head of one token.
//
// A chunk gives each row a partial result, its softmax over the chunk alone:
//
//   record   [values [head_size], sums [16], reference [16]]
//
//   score     s = q . k in natural units, maybe capped
//   reference weights are relative to 2^reference, which is about e^(greatest score); the same in all lanes
//   weight    2^(s * log2 e - reference), 0 where the row does not attend
//   sums      sums of weights; each lane has the sum over every 16th token
//   values    sum of weight * v
//
// A row goes through the same sequence of operations in a chunk, whichever rows are computed with it. Panels
// of 16 tokens that the row does not see add exact zeros, so computing them or not gives the same bits. This
// requires that V is finite in these panels. It is where other rows see it; hide_values hides the rest.
//
// This file has what all ways of computing a chunk share. attention_vectors.h multiplies with vectors,
// attention_tiles.h with AMX.
#pragma once

#include "kernels/kv_panels.h"
#include "kernels/simd.h"

namespace octavo::OCTAVO_ISA {

// Tokens; enough to spread what each chunk costs a row, few enough to divide a context among threads.
constexpr int CHUNK = 128;
constexpr int CHUNK_PANELS = CHUNK / KV_PANEL;

constexpr float LOG2_E = 1.44269504f;
constexpr float MINUS_INFINITY = -__builtin_huge_valf();

constexpr int record_size(int head_size) {
    return head_size + 2 * LANES;
}

// Make the record that of no tokens. Folding it with another record gives the other.
OCTAVO_INLINE void clear_record(float* record, int head_size) {
    for (int i = 0; i < head_size + LANES; i += LANES) {
        store(record + i, zeros());
    }
    store(record + head_size + LANES, splat(LOWEST));
}

OCTAVO_INLINE void copy_record(const float* record, int head_size, float* copy) {
    for (int i = 0; i < record_size(head_size); i += LANES) {
        store(copy + i, load(record + i));
    }
}

// Add the record of a later chunk. Chunks are folded one by one, in order.
OCTAVO_INLINE void fold_record(float* record, const float* chunk, int head_size) {
    const f32x16 old_reference = load(record + head_size + LANES);
    const f32x16 chunk_reference = load(chunk + head_size + LANES);
    const f32x16 one = splat(1.0f), factor = exp2(zeros() - abs(old_reference - chunk_reference));
    const f32x16 old_factor = select(greater(old_reference, chunk_reference), one, factor);
    const f32x16 chunk_factor = select(greater(chunk_reference, old_reference), one, factor);
    for (int i = 0; i < head_size + LANES; i += LANES) {
        store(record + i, fma(load(record + i), old_factor, load(chunk + i) * chunk_factor));
    }
    store(record + head_size + LANES, max(old_reference, chunk_reference));
}

// Tokens of a context, or panels of a chunk, from `begin` up to `end`.
struct Span {
    int begin, end;
};

OCTAVO_INLINE Span panels_of(Span tokens) {
    return {tokens.begin / KV_PANEL, (tokens.end + KV_PANEL - 1) / KV_PANEL};
}

// The panels that any of the rows sees.
OCTAVO_INLINE Span panels_seen(const Span* seen, int num_rows) {
    Span panels = panels_of(seen[0]);
    for (int row = 1; row < num_rows; ++row) {
        const Span others = panels_of(seen[row]);
        panels = {smaller(panels.begin, others.begin), larger(panels.end, others.end)};
    }
    return panels;
}

// A chunk as it lies in memory, and the part of the following chunk that is fetched into the cache meanwhile.
struct Chunk {
    const KVPanel* kv;     // [CHUNK_PANELS]
    const KVPanel* ahead;  // [CHUNK_PANELS]
    Span fetched;          // panels of `ahead` that these rows fetch: their share, or none
    int head_size;
    bool has_scales;
    float soft_cap;  // 0: none

    // What is fetched while `panel` is computed: what there is already, where that is nothing.
    OCTAVO_INLINE const KVPanel& fetched_beside(int panel) const {
        return fetched.begin <= panel && panel < fetched.end ? ahead[panel] : kv[panel];
    }
};

// x of the tokens of a panel in `seen`, `otherwise` of the others.
OCTAVO_INLINE f32x16 masked(f32x16 x, Span seen, float otherwise) {
    const f32x16 nothing = splat(otherwise);
    return select(first_lanes(larger(seen.begin, 0)), nothing,
                  select(first_lanes(larger(seen.end, 0)), x, nothing));
}

// Put copies of the V of a panel, and of its scales, where `panel` has them, that are zero for the tokens
// outside `seen`: there may be anything, and 0 times that need not be 0.
template <class Number>
OCTAVO_INLINE void hide_values(KVPanel& panel, int head_size, Span seen, Number* values, float* scales) {
    constexpr int WIDTH = NEIGHBOURS<Number>;
    uint8_t* out = reinterpret_cast<uint8_t*>(values);
    const int row_bytes = head_size * WIDTH * static_cast<int>(sizeof(Number));
    for (int token = 0; token < KV_PANEL; token += WIDTH) {
        Number mask[WIDTH];
        for (int i = 0; i < WIDTH; ++i) {
            const bool is_seen = seen.begin <= token + i && token + i < seen.end;
            __builtin_memset(mask + i, is_seen ? 0xff : 0, sizeof(Number));
        }
        const bytes64 kept = splat4(reinterpret_cast<const int8_t*>(mask));
        for (int i = 0; i < row_bytes; i += 64, out += 64) {
            store(out, load(panel.values + (out - reinterpret_cast<uint8_t*>(values))) & kept);
        }
    }
    panel.values = reinterpret_cast<uint8_t*>(values);
    if (panel.value_scales != nullptr) {
        store(scales, masked(load(panel.value_scales), seen, 0.0f));
        panel.value_scales = scales;
    }
}

// soft_cap * tanh(x / soft_cap)
OCTAVO_INLINE f32x16 capped(f32x16 x, float soft_cap) {
    const f32x16 one = splat(1.0f), two = splat(2.0f);
    return splat(soft_cap) * (one - two / (one + exp(x * splat(2.0f / soft_cap))));
}

// Queries and weights are kept as what K and V are multiplied with.
OCTAVO_INLINE void store_operands(float* p, f32x16 x) {
    store(p, x);
}

OCTAVO_INLINE void store_operands(uint16_t* p, f32x16 x) {
    store_bf16_pairs(p, x);
}

// Scale, cap and mask a row's scores of `panels`. Returns the greatest, in some lane.
OCTAVO_INLINE f32x16 finish_scores(float* scores, const Chunk& chunk, Span panels, Span seen) {
    f32x16 greatest = splat(MINUS_INFINITY);
    if (!chunk.has_scales && chunk.soft_cap == 0 && seen.begin <= panels.begin * KV_PANEL &&
        panels.end * KV_PANEL <= seen.end) {
        for (int panel = panels.begin; panel < panels.end; ++panel) {
            greatest = max(load(scores + panel * KV_PANEL), greatest);
        }
        return greatest;
    }
    for (int panel = panels.begin; panel < panels.end; ++panel) {
        f32x16 s = load(scores + panel * KV_PANEL);
        if (chunk.has_scales) {
            s = s * load(chunk.kv[panel].key_scales);
        }
        if (chunk.soft_cap != 0) {
            s = capped(s, chunk.soft_cap);
        }
        const Span here{seen.begin - panel * KV_PANEL, seen.end - panel * KV_PANEL};
        if (here.begin > 0 || here.end < KV_PANEL) {
            s = masked(s, here, MINUS_INFINITY);
        }
        store(scores + panel * KV_PANEL, s);
        greatest = max(s, greatest);
    }
    return greatest;
}

// From a row's finished scores to its weights. Completes the row's record but for the values.
template <class Operand>
OCTAVO_INLINE void weigh_scores(const float* scores, const Chunk& chunk, Span panels, float reference,
                                Operand* weights, float* record) {
    f32x16 sums = zeros();
    for (int panel = panels.begin; panel < panels.end; ++panel) {
        f32x16 weight = exp2(fma(load(scores + panel * KV_PANEL), splat(LOG2_E), splat(-reference)));
        sums = sums + weight;
        if (chunk.has_scales) {
            weight = weight * load(chunk.kv[panel].value_scales);
        }
        store_operands(weights + panel * KV_PANEL, weight);
    }
    store(record + chunk.head_size, sums);
    store(record + chunk.head_size + LANES, splat(reference));
}

// From scores [num_rows][CHUNK] to weights [num_rows][weights_apart], which may lie where the scores do: 0
// for the tokens of `panels` that a row does not see. Completes the rows' records but for the values. First
// all rows' greatest scores: what takes long to find of one is found of several at a time.
template <int MAX_ROWS, class Operand>
OCTAVO_INLINE void softmax(float* scores, int num_rows, const Chunk& chunk, Span panels, const Span* seen,
                           Operand* weights, int weights_apart, float* records) {
    float references[MAX_ROWS];
    for (int row = 0; row < num_rows; ++row) {
        const f32x16 greatest = finish_scores(scores + row * CHUNK, chunk, panels, seen[row]);
        references[row] = larger(LOWEST, reduce_max(greatest) * LOG2_E);
    }
    for (int row = 0; row < num_rows; ++row) {
        weigh_scores(scores + row * CHUNK, chunk, panels, references[row], weights + row * weights_apart,
                     records + row * record_size(chunk.head_size));
    }
}

}  // namespace octavo::OCTAVO_ISA
