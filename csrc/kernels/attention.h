#pragma once

#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA {

void attention_inputs(const AttentionInputs& instruction, const Step& step, Worker& worker);
void attention(const Attention& instruction, const Step& step, Worker& worker);
int64_t attention_scratch_bytes(const Attention& instruction, int64_t num_tokens, int num_threads);

}  // namespace octavo::OCTAVO_ISA
