// What a step's tokens are sampled from and by: SamplingMetadata of octavo/types/sampling.py, as pointers.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace octavo {

constexpr int32_t NO_LOGPROBS = -1;
constexpr int64_t INVALID_TOKEN_ID = -1;

// A list of tokens for each row: that of row r is token_ids[offsets[r]] up to token_ids[offsets[r + 1]].
struct TokenLists {
    const int64_t* offsets = nullptr;  // [num_rows + 1]; null: there are no lists
    const int32_t* token_ids = nullptr;
};

struct LogitBias {
    TokenLists tokens;
    const float* values = nullptr;  // of tokens.token_ids
};

struct Penalties {
    const float* repetition = nullptr;  // [num_rows]; null: there are no penalties
    const float* frequency = nullptr;   // [num_rows]
    const float* presence = nullptr;    // [num_rows]
    const int64_t* rows = nullptr;      // [num_rows]: the tables' row of each row of logits
    // Tables of several rows.
    const int32_t* seen = nullptr;      // [*, max_seen]: distinct tokens of prompt and output
    const int64_t* num_seen = nullptr;  // [*]: how many entries of `seen` are set
    const int32_t* counts = nullptr;    // [*, num_counts]: 1 + how often a seen token is in the output
    int64_t max_seen = 0, num_counts = 0;
};

// Where reported logprobs go. Row r has entries offsets[r] up to offsets[r + 1], the chosen token's first; a
// row that asks for none has no entries.
struct LogprobsOutput {
    bool processed;          // of the logits after adjustments, temperature and filters
    bool normalized;         // log-probabilities; otherwise logits
    const int64_t* offsets;  // [num_rows + 1]
    int64_t* counts;         // [num_rows]: how many there are; 0 where the row asks for none or is unusable
    int64_t* ranks;          // [num_rows]
    int32_t* token_ids;      // [offsets[num_rows]]
    double* values;          // [offsets[num_rows]]
};

// A thread works on one chunk of a row at a time, this many tokens. Sums are taken within a chunk, then over
// chunks in their order, so the number of threads doesn't change them. The first-level cache holds a chunk's
// logits (8 KiB), and a small vocabulary (32,000) has a chunk for each of 16 threads.
constexpr int64_t CHUNK_TOKENS = 2048;

constexpr int64_t PARTIAL_BYTES = 16;  // of a record of what is found in a chunk, or by a thread

// Memory whose content does not outlive a call: a part of each array for each thread.
struct SampleScratch {
    int64_t num_partials;  // of a part: as many as a row has chunks, and at least the number of threads
    float* adjusted;       // [num_threads, vocab_size]
    uint64_t* entries;     // [num_threads, vocab_size]
    uint64_t* sorted;      // [num_threads, vocab_size]
    uint8_t* partials;     // [num_threads, 2, num_partials, PARTIAL_BYTES]
};

struct SampleArguments {
    int64_t num_rows, vocab_size;
    int64_t num_token_ids;  // 1 .. vocab_size: tokens past these are padding
    const float* logits;    // [num_rows, vocab_size], only read
    // [num_rows] each. Null where `given_token_ids` are there.
    const float* temperature;
    const int32_t* top_k;
    const float* top_p;
    const float* min_p;
    const uint64_t* seeds;
    const int64_t* positions;
    const uint32_t* allowed;  // [num_rows, ceil(vocab_size / 32)]; null: everything is
    LogitBias bias;
    Penalties penalties;
    // [num_rows]: nothing is sampled, logprobs of these are reported. Null: sample.
    const int64_t* given_token_ids;
    int64_t* token_ids;  // [num_rows], written unless they are given
    LogprobsOutput logprobs;
    SampleScratch scratch;
};

}  // namespace octavo

namespace octavo::OCTAVO_ISA {

// What octavo.sampling.sampler does, and with the same result: the same token from the same logits but where
// the last bits of a logarithm or of a sum of probabilities decide (a chance of about 1e-9 a token); logprobs
// within 1e-9.
void sample(const SampleArguments& arguments, Worker& worker);

}  // namespace octavo::OCTAVO_ISA
