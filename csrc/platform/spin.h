// The pause of a thread between two reads of a number that another thread will write.
#pragma once

namespace octavo {

inline void pause_spinning() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // some tens of cycles, as pause takes; yield does nothing on most processors
#endif
}

}  // namespace octavo
