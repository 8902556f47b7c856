// What the processor can do, and which of the compiled instruction sets to use.
#pragma once

#include <string>
#include <vector>

namespace octavo {

// The instruction sets that kernels are compiled for, slowest first. Each needs what the ones before it need.
enum class InstructionSet { portable, avx2, avx512, avx512_bf16, amx };

const char* name_of(InstructionSet set);

// The instruction sets that are compiled in and that this processor and operating system can run, slowest
// first.
std::vector<InstructionSet> usable_instruction_sets();

// Ask the operating system for the state that `set` needs (AMX tiles), on the calling thread and on threads
// that it starts.
bool enable(InstructionSet set);

}  // namespace octavo
