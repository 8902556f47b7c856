// The kernels of this instruction set: one for each instruction, from the list in program/instructions.h.
#pragma once

#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA {

#define OCTAVO_DECLARE(Record, kernel) \
    void kernel(const Record& instruction, const Step& step, Worker& worker);
OCTAVO_INSTRUCTIONS(OCTAVO_DECLARE)
#undef OCTAVO_DECLARE

int64_t linear_scratch_bytes(const Linear& instruction, int64_t num_tokens);
int64_t attention_scratch_bytes(const Attention& instruction, int64_t num_tokens, int num_threads);

}  // namespace octavo::OCTAVO_ISA
