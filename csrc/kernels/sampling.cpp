// Sampling: from a step's logits to its tokens and their logprobs.
#include "kernels/sampling.h"

#include <cmath>

#include "kernels/adjustments.h"
#include "kernels/distribution.h"
#include "kernels/noise.h"
#include "kernels/selection.h"
#include "kernels/team.h"

namespace octavo::OCTAVO_ISA {

namespace {

// ---- Filters ----

// The smallest logit that, scaled, is at least `bound`.
float least_logit(const Distribution& d, double bound) {
    float logit = static_cast<float>(bound * d.temperature);  // except for rounding
    while (d.scale(logit) < bound) {
        logit = __builtin_nextafterf(logit, INFINITY);
    }
    while (logit > LOWEST && d.scale(__builtin_nextafterf(logit, -INFINITY)) >= bound) {
        logit = __builtin_nextafterf(logit, -INFINITY);
    }
    return logit;
}

Cut find_top_k(const Distribution& d, int64_t k, Team& team) {
    const int64_t count = gather_most_likely(d, k, team);
    Cut cut = d.cut;
    if (count == k) {
        cut = cut_at(kth_largest(team.entries, k, k));
    }
    return team.broadcast(cut);
}

// The last of the `count` entries, most likely first, that it takes for their probabilities to reach `top_p`;
// 0 if they don't. `sum` is that of all exponentials.
uint64_t find_last_of_nucleus(const Distribution& d, const uint64_t* entries, int64_t count, double sum,
                              double top_p) {
    double mass = 0;
    for (int64_t i = 0; i < count; ++i) {
        mass += exp_of(d, logit_of(entries[i])) / sum;
        if (mass >= top_p) {
            return entries[i];
        }
    }
    return 0;
}

Cut find_top_p(const Distribution& d, double top_p, Team& team) {
    // Hardly ever are less likely tokens needed, and there are at most 10,000 that likely.
    constexpr double LIKELY = 1e-4;
    // Never are these: all together they hold less than 1 - top_p. The 2 is a margin for rounding.
    const double negligible = (1 - top_p) / (2 * static_cast<double>(d.size));
    const double sum = sum_of_exps(d, team);
    const double least_probabilities[] = {LIKELY, negligible};
    for (const double least : least_probabilities) {
        Distribution candidates = d;
        const float logit = least_logit(d, std::log(least * sum) + d.scale(d.largest.logit));
        if (logit > d.cut.logit) {
            candidates.cut = {logit};
        }
        const int64_t count = gather_most_likely(candidates, d.size, team);
        uint64_t last = 0;
        if (team.leads()) {
            sort_entries(team.entries, team.sorted, count);
            last = find_last_of_nucleus(d, team.entries, count, sum, top_p);
        }
        last = team.broadcast(last);
        if (last != 0) {
            return cut_at(last);
        }
    }
    return d.cut;
}

// Narrow the distribution by the row's min_p, top_k and top_p, in this order.
void apply_filters(const SampleArguments& a, int64_t row, Distribution& d, Team& team) {
    const double min_p = a.min_p[row];
    const int64_t top_k = a.top_k[row];
    if (min_p >= 1 || top_k == 1) {
        d.cut = {d.largest.logit, d.largest.token};
        return;
    }
    if (min_p > 0) {
        d.cut = {least_logit(d, d.scale(d.largest.logit) + std::log(min_p))};
    }
    if (top_k > 0 && top_k < d.size) {
        d.cut = find_top_k(d, top_k, team);
    }
    if (a.top_p[row] < 1) {
        d.cut = find_top_p(d, a.top_p[row], team);
    }
}

// ---- The draw ----

struct Winner {
    double score;
    int64_t token;

    bool beats(const Winner& other) const {
        return score > other.score || (score == other.score && token < other.token);
    }
};

Winner score_of(const Distribution& d, float logit, int64_t token, uint64_t key) {
    return {d.scale(logit) + gumbel_noise(splitmix64(key, token)), token};
}

// Bounds of the scores of a segment's tokens, good enough to sort out all but a few of them.
OCTAVO_INLINE void bound_scores(const float* segment, int64_t first, float inverse_temperature, uint64_t key,
                                float* bounds) {
    for (int i = 0; i < SEGMENT_TOKENS; ++i) {
        bounds[i] = segment[i] * inverse_temperature + gumbel_bound(splitmix64(key, first + i));
    }
}

// A bound under this is that of a token whose score is under `score`. The margin is for rounding: twice that
// of the bounds, whose parts are at most 105 apart from the score.
OCTAVO_INLINE float least_bound(double score) {
    return static_cast<float>(score - (std::fabs(score) + 128) * 0x1p-20);
}

void draw_from_segment(const Distribution& d, const float* segment, int64_t first, uint64_t key,
                       Winner& winner) {
    if (largest_of_segment(segment) < d.cut.logit) {
        return;
    }
    float bounds[SEGMENT_TOKENS];
    bound_scores(segment, first, static_cast<float>(1 / d.temperature), key, bounds);
    float least = least_bound(winner.score);
    if (largest_of_segment(bounds) < least) {
        return;
    }
    for (int i = 0; i < SEGMENT_TOKENS; ++i) {
        if (bounds[i] < least || !d.cut.keeps(segment[i], first + i)) {
            continue;
        }
        const Winner candidate = score_of(d, segment[i], first + i, key);
        if (candidate.beats(winner)) {
            winner = candidate;
            least = least_bound(winner.score);
        }
    }
}

// A draw by the Gumbel-max trick: the token whose scaled logit plus noise is the largest.
int64_t draw(const Distribution& d, uint64_t key, Team& team) {
    if (d.has_one_token()) {
        return d.largest.token;
    }
    // The most likely token's score is hard enough to beat that few others are worth a logarithm.
    Winner winner = score_of(d, d.largest.logit, d.largest.token, key);
    const Winner* found = for_each_chunk<Winner>(d.size, team, [&](Range tokens) {
        for_each_segment(d.logits, tokens, [&](const float* segment, int64_t first) {
            draw_from_segment(d, segment, first, key, winner);
        });
        return winner;
    });
    for (int64_t chunk = 0; chunk < num_chunks(d.size); ++chunk) {
        if (found[chunk].beats(winner)) {
            winner = found[chunk];
        }
    }
    return winner.token;
}

// ---- Rows ----

// Report `token`'s logprob and rank, and the logprobs of the most likely tokens.
void report(const SampleArguments& a, int64_t row, const Distribution& d, int64_t token, Team& team) {
    const LogprobsOutput& out = a.logprobs;
    const int64_t begin = out.offsets[row];
    const int64_t num_likely = out.offsets[row + 1] - begin - 1;
    double log_sum = 0;
    if (out.normalized) {
        log_sum = d.usable() ? d.scale(d.largest.logit) + std::log(sum_of_exps(d, team)) : NAN;
    }
    const float logit = token < d.size ? d.logits[token] : -INFINITY;
    const int64_t rank = logit == -INFINITY ? a.vocab_size : count_at_least(d, logit, team);
    const int64_t count = num_likely > 0 ? gather_most_likely(d, num_likely, team) : 0;
    if (!team.leads()) {
        return;
    }
    sort_entries(team.entries, team.sorted, count);
    out.counts[row] = 1 + count;
    out.ranks[row] = rank;
    out.token_ids[begin] = static_cast<int32_t>(token);
    out.values[begin] = d.scale(logit) - log_sum;
    for (int64_t i = 0; i < count; ++i) {
        out.token_ids[begin + 1 + i] = static_cast<int32_t>(token_of(team.entries[i]));
        out.values[begin + 1 + i] = d.scale(logit_of(team.entries[i])) - log_sum;
    }
}

// The token that the row's parameters choose. `d`, its adjusted logits, becomes the distribution that the
// token is drawn from.
int64_t choose(const SampleArguments& a, int64_t row, Distribution& d, Team& team) {
    if (!d.usable() || a.temperature[row] == 0) {
        return d.largest.token;
    }
    d.temperature = a.temperature[row];
    apply_filters(a, row, d, team);
    return draw(d, splitmix64(a.seeds[row], static_cast<uint64_t>(a.positions[row])), team);
}

void sample_row(const SampleArguments& a, int64_t row, Team& team) {
    const Distribution raw = distribution_of(a.logits + row * a.vocab_size, a.num_token_ids, team);
    Distribution processed = raw;
    if (raw.usable() && is_adjusted(a, row)) {
        adjust(a, row, team);
        processed = distribution_of(team.adjusted, a.num_token_ids, team);
    }
    const int64_t token = choose(a, row, processed, team);
    if (team.leads()) {
        a.token_ids[row] = token;
    }
    if (token != INVALID_TOKEN_ID && a.logprobs.offsets[row] < a.logprobs.offsets[row + 1]) {
        report(a, row, a.logprobs.processed ? processed : raw, token, team);
    }
}

void work_on_row(const SampleArguments& a, int64_t row, Team& team) {
    if (a.given_token_ids == nullptr) {
        sample_row(a, row, team);
    } else {
        const Distribution raw = distribution_of(a.logits + row * a.vocab_size, a.num_token_ids, team);
        report(a, row, raw, a.given_token_ids[row], team);
    }
    team.worker.wait();  // the next row takes the same scratch
}

}  // namespace

// As many rows as can be divided evenly go to one thread each; all threads work together on each of the rest.
void sample(const SampleArguments& a, Worker& worker) {
    const int64_t num_alone = a.num_rows / worker.count * worker.count;
    const Range own = share(num_alone, worker);
    Team alone(a, Worker{0, 1, nullptr, nullptr, 0, {}}, worker.index);
    for (int64_t row = own.begin; row < own.end; ++row) {
        work_on_row(a, row, alone);
    }
    if (num_alone == a.num_rows) {
        return;
    }
    worker.wait();  // together they take the first thread's scratch
    Team together(a, worker, 0);
    for (int64_t row = num_alone; row < a.num_rows; ++row) {
        work_on_row(a, row, together);
    }
}

}  // namespace octavo::OCTAVO_ISA
