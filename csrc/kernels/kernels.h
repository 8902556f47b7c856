// The kernels of one instruction set, as a table of functions.
//
// All threads of the pool call a function at the same time, each with its own Worker. It returns when the
// thread's own part is done; the caller then waits at a barrier. The result of a row depends on that row (for
// attention: on its request) alone, never on other rows, on the number of threads or on how a prompt was cut
// into steps.
#pragma once

#include "kernels/formats.h"
#include "platform/thread_pool.h"
#include "program/instructions.h"

namespace octavo {

struct SampleArguments;  // kernels/sampling.h
enum class Arithmetic;   // kernels/probes.h

struct Kernels {
#define OCTAVO_FUNCTION(Record, kernel) void (*kernel)(const Record&, const Step&, Worker&);
    OCTAVO_INSTRUCTIONS(OCTAVO_FUNCTION)
#undef OCTAVO_FUNCTION

    // Bytes of Step::shared_scratch that `linear` and `attention` need for a step of `num_tokens`.
    int64_t (*linear_scratch_bytes)(const Linear&, int64_t num_tokens);
    int64_t (*attention_scratch_bytes)(const Attention&, int64_t num_tokens, int num_threads);

    void (*sample)(const SampleArguments&, Worker&);

    // For benchmarks: kernels/probes.h.
    void (*probe_memory)(const uint8_t* data, int64_t num_bytes, Worker&);
    int64_t (*probe_arithmetic)(Arithmetic, int64_t num_rounds, Worker&);
};

}  // namespace octavo
