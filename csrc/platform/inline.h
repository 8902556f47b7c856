// Functions that every caller compiles for itself.
//
// Kernels are compiled once for each instruction set. Where a compiler does not inline an ordinary inline
// function, the linker keeps one copy for all, and that may be one for a processor that this machine is not.
// So every function that kernels share with the rest is OCTAVO_INLINE.
#pragma once

#define OCTAVO_INLINE inline __attribute__((always_inline))
