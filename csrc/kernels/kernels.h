// The kernels of one instruction set, as a table of functions.
//
// Every function is called by all threads of the pool at once, each with its own Worker, and returns when its
// own part is done; whoever calls puts a barrier behind it. The result of a row depends on that row (for
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
    void (*embedding)(const Embedding&, const Step&, Worker&);
    void (*rope_angles)(const RopeAngles&, const Step&, Worker&);
    void (*rms_norm)(const RmsNorm&, const Step&, Worker&);
    void (*linear)(const Linear&, const Step&, Worker&);
    void (*activate_and_mul)(const ActivateAndMul&, const Step&, Worker&);
    void (*rope)(const Rope&, const Step&, Worker&);
    void (*attention_inputs)(const AttentionInputs&, const Step&, Worker&);
    void (*attention)(const Attention&, const Step&, Worker&);
    void (*sample)(const SampleArguments&, Worker&);

    // Bytes of Step::shared_scratch that `linear` and `attention` want for a step of `num_tokens`.
    int64_t (*linear_scratch_bytes)(const Linear&, int64_t num_tokens);
    int64_t (*attention_scratch_bytes)(const Attention&, int64_t num_tokens, int num_threads);

    // For benchmarks: kernels/probes.h.
    void (*probe_memory)(const uint8_t* data, int64_t num_bytes, Worker&);
    int64_t (*probe_arithmetic)(Arithmetic, int64_t num_rounds, Worker&);
};

}  // namespace octavo
