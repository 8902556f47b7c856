#include "program/device.h"

#include <stdexcept>
#include <string>

#define OCTAVO_DECLARE(isa)       \
    namespace octavo::isa {       \
    extern const Kernels KERNELS; \
    }

#ifdef OCTAVO_HAS_portable
OCTAVO_DECLARE(portable)
#endif
#ifdef OCTAVO_HAS_avx2
OCTAVO_DECLARE(avx2)
#endif
#ifdef OCTAVO_HAS_avx512
OCTAVO_DECLARE(avx512)
#endif
#ifdef OCTAVO_HAS_avx512_bf16
OCTAVO_DECLARE(avx512_bf16)
#endif
#ifdef OCTAVO_HAS_amx
OCTAVO_DECLARE(amx)
#endif

namespace octavo {

namespace {

// Of each thread: a few rows and panels of the most inputs a matrix may have. Touched only as needed.
constexpr size_t SCRATCH_BYTES = 16 << 20;

}  // namespace

const Kernels* kernels_for(InstructionSet set) {
    switch (set) {
#ifdef OCTAVO_HAS_portable
        case InstructionSet::portable:
            return &portable::KERNELS;
#endif
#ifdef OCTAVO_HAS_avx2
        case InstructionSet::avx2:
            return &avx2::KERNELS;
#endif
#ifdef OCTAVO_HAS_avx512
        case InstructionSet::avx512:
            return &avx512::KERNELS;
#endif
#ifdef OCTAVO_HAS_avx512_bf16
        case InstructionSet::avx512_bf16:
            return &avx512_bf16::KERNELS;
#endif
#ifdef OCTAVO_HAS_amx
        case InstructionSet::amx:
            return &amx::KERNELS;
#endif
        default:
            return nullptr;
    }
}

Device::Device(InstructionSet set, int num_threads)
    : instruction_set(set), kernels(kernels_for(set)), pool(num_threads, SCRATCH_BYTES) {
    if (kernels == nullptr || !enable(set)) {
        throw std::runtime_error(std::string("this build or processor has no ") + name_of(set));
    }
}

}  // namespace octavo
