// What tokens are drawn from and logprobs are of: a row of logits, a temperature and a cut.
//
// In float64, division by the temperature keeps float32 logits in their order and distinct. So all that
// compares tokens works on the logits as they are, and no row is ever copied to be processed.
#pragma once

#include <cmath>

#include "kernels/selection.h"
#include "kernels/simd.h"
#include "kernels/team.h"

namespace octavo::OCTAVO_ISA {

struct Largest {
    float logit;
    int64_t token;  // INVALID_TOKEN_ID: the row holds NaN or +inf, or nothing but -inf
};

struct ChunkLargest {
    float logit;
    bool usable;
};

inline ChunkLargest find_largest_of_chunk(const float* logits, Range tokens) {
    constexpr int VECTORS = SEGMENT_TOKENS / LANES;
    f32x16 largest[VECTORS], poison[VECTORS];
    for (int v = 0; v < VECTORS; ++v) {
        largest[v] = splat(-INFINITY);
        poison[v] = zeros();
    }
    for_each_segment(logits, tokens, [&](const float* segment, int64_t) {
        for (int v = 0; v < VECTORS; ++v) {
            const f32x16 x = load(segment + v * LANES);
            largest[v] = max(x, largest[v]);
            // NaN times 0 and inf times 0 are NaN, which stays; -inf is allowed, and raised first.
            poison[v] = fma(max(splat(LOWEST), x), zeros(), poison[v]);
        }
    });
    const f32x16 all_largest = max(max(largest[0], largest[1]), max(largest[2], largest[3]));
    const f32x16 all_poison = (poison[0] + poison[1]) + (poison[2] + poison[3]);
    return {reduce_max(all_largest), reduce_add(all_poison) == 0};
}

inline Largest find_largest(const float* logits, int64_t size, Team& team) {
    const ChunkLargest* found = for_each_chunk<ChunkLargest>(
        size, team, [&](Range tokens) { return find_largest_of_chunk(logits, tokens); });
    float logit = -INFINITY;
    int64_t token = 0;
    bool usable = true;
    for (int64_t chunk = 0; chunk < num_chunks(size); ++chunk) {
        usable &= found[chunk].usable;
        if (found[chunk].logit > logit) {
            logit = found[chunk].logit;
            token = chunk * CHUNK_TOKENS;
        }
    }
    if (!usable || logit == -INFINITY) {
        return {logit, INVALID_TOKEN_ID};
    }
    while (logits[token] != logit) {
        ++token;
    }
    return {logit, token};
}

struct Distribution {
    const float* logits;
    int64_t size;
    Largest largest;
    double temperature = 1;
    Cut cut = {};

    bool usable() const { return largest.token != INVALID_TOKEN_ID; }

    bool has_one_token() const { return cut.logit == largest.logit && cut.token == largest.token; }

    OCTAVO_INLINE double scale(float logit) const { return static_cast<double>(logit) / temperature; }
};

inline Distribution distribution_of(const float* logits, int64_t size, Team& team) {
    return {logits, size, find_largest(logits, size, team)};
}

// e^x for x <= 0, within 1e-14 of it and exact at 0; 0 below -700. Loops over it become vectors.
OCTAVO_INLINE double exp_of_negative(double x) {
    constexpr double LOG2_E = 1.4426950408889634;
    constexpr double LN_2_HIGH = 0.693147180369123816490, LN_2_LOW = 1.90821492927058770002e-10;
    constexpr double TO_INTEGER = 0x1.8p52;  // a number that is added to it is rounded, to its lowest bits
    const double clamped = x < -700 ? -700 : x;
    const double shifted = clamped * LOG2_E + TO_INTEGER;
    const double n = shifted - TO_INTEGER;
    const double r = clamped - n * LN_2_HIGH - n * LN_2_LOW;
    // Taylor's series; |r| <= ln 2 / 2, so that the omitted terms are below 1e-14.
    double p = 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1;
    p = p * r + 1;
    uint64_t bits;
    __builtin_memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 52) + 0x3ff0000000000000;  // 2^n: what TO_INTEGER has above bit 11 is shifted out
    double power;
    __builtin_memcpy(&power, &bits, sizeof power);
    return x < -700 ? 0 : p * power;
}

// e^(scaled logit - largest scaled logit): how likely a token is, as a share of the most likely one.
OCTAVO_INLINE double exp_of(const Distribution& d, float logit) {
    // A division would take longer than the exponential.
    return exp_of_negative((static_cast<double>(logit) - d.largest.logit) * (1 / d.temperature));
}

// The sum of the exponentials of the tokens that are kept.
inline double sum_of_exps(const Distribution& d, Team& team) {
    return sum_over_chunks<double>(d.size, team, [&](Range tokens) {
        double lanes[LANES] = {};
        for_each_segment(d.logits, tokens, [&](const float* segment, int64_t first) {
            if (largest_of_segment(segment) < d.cut.logit) {
                return;
            }
            for (int i = 0; i < SEGMENT_TOKENS; i += LANES) {
                for (int lane = 0; lane < LANES; ++lane) {
                    const float logit = segment[i + lane];
                    const double exp = exp_of(d, logit);
                    lanes[lane] += d.cut.keeps(logit, first + i + lane) ? exp : 0;
                }
            }
        });
        double sum = 0;
        for (const double lane : lanes) {
            sum += lane;
        }
        return sum;
    });
}

// How many of the tokens that are kept have at least this logit.
inline int64_t count_at_least(const Distribution& d, float logit, Team& team) {
    return sum_over_chunks<int64_t>(d.size, team, [&](Range tokens) {
        int64_t count = 0;
        for_each_segment(d.logits, tokens, [&](const float* segment, int64_t first) {
            if (largest_of_segment(segment) < logit) {
                return;
            }
            for (int i = 0; i < SEGMENT_TOKENS; ++i) {
                count += (segment[i] >= logit) & d.cut.keeps(segment[i], first + i);
            }
        });
        return count;
    });
}

// Put the entries of the `k` most likely of `tokens`, and perhaps of some more, into `out`, in the order of
// their ids. `out` must be able to hold all of `tokens`. Returns the number of entries.
inline int64_t gather_range(const Distribution& d, Range tokens, int64_t k, uint64_t* out) {
    Cut cut = d.cut;
    int64_t count = 0;
    for_each_segment(d.logits, tokens, [&](const float* segment, int64_t first) {
        if (largest_of_segment(segment) < cut.logit) {
            return;
        }
        for (int i = 0; i < SEGMENT_TOKENS; ++i) {
            if (cut.keeps(segment[i], first + i)) {
                out[count++] = make_entry(segment[i], first + i);
            }
        }
        // From then on few tokens are likely enough to be looked at.
        if (count > 2 * k + SEGMENT_TOKENS) {
            cut = cut_at(keep_largest(out, count, k));
            count = k;
        }
    });
    return count;
}

// Put the entries of the `k` > 0 most likely tokens into the team's `entries`, by their ids. Returns how many
// there are, to the leader; to the others nothing, and they must not touch the entries before a barrier.
inline int64_t gather_most_likely(const Distribution& d, int64_t k, Team& team) {
    struct Found {
        int64_t begin, count;
    };

    const Range tokens = team.tokens(d.size);
    Found* found = team.next_partials<Found>();
    found[team.worker.index] = {tokens.begin, gather_range(d, tokens, k, team.entries + tokens.begin)};
    team.worker.wait();
    if (!team.leads()) {
        return 0;
    }
    int64_t count = 0;
    for (int thread = 0; thread < team.worker.count; ++thread) {
        const uint64_t* entries = team.entries + found[thread].begin;
        __builtin_memmove(team.entries + count, entries, found[thread].count * sizeof(uint64_t));
        count += found[thread].count;
    }
    if (count <= k) {
        return count;
    }
    keep_largest(team.entries, count, k);
    return k;
}

}  // namespace octavo::OCTAVO_ISA
