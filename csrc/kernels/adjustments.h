// Masks of allowed tokens, biases and penalties: the same bits as octavo/sampling/adjustments.py gives.
#pragma once

#include <cmath>

#include "kernels/simd.h"
#include "kernels/team.h"

namespace octavo::OCTAVO_ISA {

inline const uint32_t* mask_of(const SampleArguments& a, int64_t row) {
    return a.allowed == nullptr ? nullptr : a.allowed + row * ((a.vocab_size + 31) / 32);
}

inline bool is_masked(const SampleArguments& a, int64_t row) {
    const uint32_t* words = mask_of(a, row);
    if (words == nullptr) {
        return false;
    }
    const int64_t num_whole = a.num_token_ids / 32, num_rest = a.num_token_ids % 32;
    uint32_t everywhere = ~0u;
    for (int64_t i = 0; i < num_whole; ++i) {
        everywhere &= words[i];
    }
    if (num_rest > 0) {
        everywhere &= words[num_whole] | ~0u << num_rest;
    }
    return everywhere != ~0u;
}

inline bool is_biased(const LogitBias& bias, int64_t row) {
    return bias.tokens.offsets != nullptr && bias.tokens.offsets[row] < bias.tokens.offsets[row + 1];
}

inline bool is_penalized(const Penalties& penalties, int64_t row) {
    return penalties.repetition != nullptr &&
           (penalties.repetition[row] != 1 || penalties.frequency[row] != 0 || penalties.presence[row] != 0);
}

// Call `use` with each token of the row's list that lies in `range`, and its index in the lists.
template <class Use>
inline void for_each_token(const TokenLists& lists, int64_t row, Range range, const Use& use) {
    for (int64_t i = lists.offsets[row]; i < lists.offsets[row + 1]; ++i) {
        const int64_t token = lists.token_ids[i];
        if (token >= range.begin && token < range.end) {
            use(token, i);
        }
    }
}

inline void copy_allowed(const float* logits, const uint32_t* words, Range tokens, float* out) {
    for (int64_t first = tokens.begin; first < tokens.end; first += 32) {
        const uint32_t word = words[first / 32];
        const int64_t count = smaller<int64_t>(tokens.end - first, 32);
        for (int64_t i = 0; i < count; ++i) {
            out[first + i] = word >> i & 1 ? logits[first + i] : -INFINITY;
        }
    }
}

inline void apply_penalties(const Penalties& penalties, int64_t row, Range tokens, float* logits) {
    const float repetition = penalties.repetition[row];
    const int64_t of_tables = penalties.rows[row];
    const int32_t* seen = penalties.seen + of_tables * penalties.max_seen;
    const int32_t* counts = penalties.counts + of_tables * penalties.num_counts;
    const int64_t end = smaller(tokens.end, penalties.num_counts);
    for (int64_t i = 0; i < penalties.num_seen[of_tables]; ++i) {
        const int64_t token = seen[i];
        if (token < tokens.begin || token >= end) {
            continue;
        }
        float logit = logits[token];
        logit = logit > 0 ? logit / repetition : logit * repetition;
        if (const int32_t count = counts[token] - 1; count > 0) {
            logit -= static_cast<float>(count) * penalties.frequency[row];
            logit -= penalties.presence[row];
        }
        logits[token] = logit;
    }
}

inline bool is_adjusted(const SampleArguments& a, int64_t row) {
    return is_masked(a, row) || is_biased(a.bias, row) || is_penalized(a.penalties, row);
}

// Write the row's adjusted logits into the team's scratch. Each thread writes the logits that it will read.
inline void adjust(const SampleArguments& a, int64_t row, Team& team) {
    const float* logits = a.logits + row * a.vocab_size;
    float* out = team.adjusted;
    const Range tokens = team.tokens(a.num_token_ids);
    if (is_masked(a, row)) {
        copy_allowed(logits, mask_of(a, row), tokens, out);
    } else if (tokens.begin < tokens.end) {
        __builtin_memcpy(out + tokens.begin, logits + tokens.begin,
                         (tokens.end - tokens.begin) * sizeof(float));
    }
    if (is_biased(a.bias, row)) {
        for_each_token(a.bias.tokens, row, tokens,
                       [&](int64_t token, int64_t i) { out[token] += a.bias.values[i]; });
    }
    if (is_penalized(a.penalties, row)) {
        apply_penalties(a.penalties, row, tokens, out);
    }
}

}  // namespace octavo::OCTAVO_ISA
