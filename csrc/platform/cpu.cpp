#include "platform/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdint>
#include <initializer_list>

namespace octavo {

namespace {

constexpr InstructionSet COMPILED[] = {
#ifdef OCTAVO_HAS_portable
    InstructionSet::portable,
#endif
#ifdef OCTAVO_HAS_avx2
    InstructionSet::avx2,
#endif
#ifdef OCTAVO_HAS_avx512
    InstructionSet::avx512,
#endif
#ifdef OCTAVO_HAS_avx512_bf16
    InstructionSet::avx512_bf16,
#endif
#ifdef OCTAVO_HAS_amx
    InstructionSet::amx,
#endif
};

#if defined(__x86_64__)

constexpr uint32_t bits(std::initializer_list<int> indices) {
    uint32_t word = 0;
    for (int index : indices) {
        word |= 1u << index;
    }
    return word;
}

bool has(uint32_t word, uint32_t wanted) {
    return (word & wanted) == wanted;
}

// The features that the processor reports. Fields have the names of the registers in the manual.
struct Features {
    uint32_t leaf1_ecx = 0, leaf7_ebx = 0, leaf7_ecx = 0, leaf7_edx = 0, leaf7_1_eax = 0;
    uint32_t xcr0 = 0;  // the registers that the operating system saves when it switches threads
};

Features read_features() {
    Features f;
    uint32_t eax, ebx, ecx, edx;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) {
        f.leaf1_ecx = ecx;
    }
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        f.leaf7_ebx = ebx;
        f.leaf7_ecx = ecx;
        f.leaf7_edx = edx;
    }
    if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) {
        f.leaf7_1_eax = eax;
    }
    const uint32_t OSXSAVE = bits({27});  // without it there is no xgetbv
    if (has(f.leaf1_ecx, OSXSAVE)) {
        uint32_t upper;
        asm volatile("xgetbv" : "=a"(f.xcr0), "=d"(upper) : "c"(0));
    }
    return f;
}

// The last instruction set of the chain such that the processor has the features of this set and of all sets
// before it.
InstructionSet highest() {
    const Features f = read_features();
    const uint32_t FMA = bits({12}), AVX = bits({28}), F16C = bits({29});
    const uint32_t AVX2 = bits({5}), AVX512_F_DQ_BW_VL = bits({16, 17, 30, 31});
    const uint32_t VNNI = bits({11}), BF16 = bits({5}), AMX_BF16_TILE_INT8 = bits({22, 24, 25});
    const uint32_t YMM = bits({1, 2}), ZMM = bits({5, 6, 7}), TILES = bits({17, 18});
    if (!has(f.xcr0, YMM) || !has(f.leaf1_ecx, FMA | AVX | F16C) || !has(f.leaf7_ebx, AVX2)) {
        return InstructionSet::portable;
    }
    if (!has(f.xcr0, ZMM) || !has(f.leaf7_ebx, AVX512_F_DQ_BW_VL)) {
        return InstructionSet::avx2;
    }
    if (!has(f.leaf7_ecx, VNNI) || !has(f.leaf7_1_eax, BF16)) {
        return InstructionSet::avx512;
    }
    if (!has(f.xcr0, TILES) || !has(f.leaf7_edx, AMX_BF16_TILE_INT8)) {
        return InstructionSet::avx512_bf16;
    }
    return InstructionSet::amx;
}

#else

InstructionSet highest() {
    return InstructionSet::portable;
}

#endif

// Linux gives a process the tiles' 8 KB of state only when asked (arch_prctl, since 5.16).
bool request_tiles() {
#if defined(__x86_64__) && defined(__linux__)
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

}  // namespace

const char* name_of(InstructionSet set) {
    constexpr const char* NAMES[] = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};
    return NAMES[static_cast<int>(set)];
}

std::vector<InstructionSet> usable_instruction_sets() {
    std::vector<InstructionSet> usable;
    for (InstructionSet set : COMPILED) {
        if (enable(set)) {
            usable.push_back(set);
        }
    }
    return usable;
}

bool enable(InstructionSet set) {
    return set <= highest() && (set != InstructionSet::amx || request_tiles());
}

}  // namespace octavo
