// The table of this instruction set's kernels.
#include "kernels/declarations.h"
#include "kernels/kernels.h"
#include "kernels/probes.h"
#include "kernels/sampling.h"

namespace octavo::OCTAVO_ISA {

#define OCTAVO_ENTRY(Record, kernel) kernel,

extern const Kernels KERNELS;
const Kernels KERNELS = {
    OCTAVO_INSTRUCTIONS(OCTAVO_ENTRY)  // in the list's order
    linear_scratch_bytes,
    attention_scratch_bytes,
    sample,
    probe_memory,
    probe_arithmetic,
};

}  // namespace octavo::OCTAVO_ISA
