#pragma once

#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA {

void linear(const Linear& instruction, const Step& step, Worker& worker);
int64_t linear_scratch_bytes(const Linear& instruction, int64_t num_tokens);

}  // namespace octavo::OCTAVO_ISA
