// Checks of conditions that the code itself guarantees, in builds with sanitizers only.
//
// A sanitizer finds accesses outside of an allocation. Buffers and scratch are cut from few allocations, so
// an access to a neighbour inside the same one needs a check of its own.
#pragma once

#ifdef OCTAVO_DCHECKS

namespace octavo {

// Prints the failed condition and where it stands, and aborts.
[[noreturn]] void fail_check(const char* condition, const char* file, int line);

}  // namespace octavo

#define OCTAVO_DCHECK(condition) \
    ((condition) ? static_cast<void>(0) : ::octavo::fail_check(#condition, __FILE__, __LINE__))

#else

#define OCTAVO_DCHECK(condition) static_cast<void>(sizeof((condition) ? 1 : 0))  // compiled, never evaluated

#endif
