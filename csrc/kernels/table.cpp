// The table of this instruction set's kernels.
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/kernels.h"
#include "kernels/linear.h"
#include "kernels/probes.h"
#include "kernels/sampling.h"

namespace octavo::OCTAVO_ISA {

extern const Kernels KERNELS;
const Kernels KERNELS = {
    embedding,
    rope_angles,
    rms_norm,
    linear,
    activate_and_mul,
    rope,
    attention_inputs,
    attention,
    sample,
    linear_scratch_bytes,
    attention_scratch_bytes,
    probe_memory,
    probe_arithmetic,
};

}  // namespace octavo::OCTAVO_ISA
