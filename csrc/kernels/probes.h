// What the machine can do at most: what benchmarks compare kernels with.
#pragma once

#include "kernels/kernels.h"

namespace octavo {

// The kinds of numbers that are multiplied, and whether by the processor's vectors or by its matrix tiles.
enum class Arithmetic { f32, bf16, int8, bf16_tiles, int8_tiles };

}  // namespace octavo

namespace octavo::OCTAVO_ISA {

// Read this thread's share of the `num_bytes` at `data`, in steps of 256.
void probe_memory(const uint8_t* data, int64_t num_bytes, Worker& worker);

// Multiply small matrices that lie in the first-level cache, `num_rounds` times. Returns how many operations
// (multiplications and additions) that were; 0 if this instruction set has no such arithmetic.
int64_t probe_arithmetic(Arithmetic arithmetic, int64_t num_rounds, Worker& worker);

}  // namespace octavo::OCTAVO_ISA
