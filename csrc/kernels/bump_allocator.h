// Scratch memory, divided.
#pragma once

#include "platform/dcheck.h"
#include "platform/round_up.h"

namespace octavo::OCTAVO_ISA {

// Cuts arrays from a block of memory, one after the other, each at a multiple of 64. Nothing is freed: the
// memory is used again by the next kernel.
class BumpAllocator {
  public:
    BumpAllocator(uint8_t* memory, int64_t num_bytes) : memory_(memory), num_bytes_(num_bytes) {}

    // Only counts: `allocate` returns pointers that must not be used.
    static BumpAllocator counting() { return {nullptr, INT64_MAX}; }

    template <class T>
    T* allocate(int64_t count) {
        uint8_t* array = memory_ + used_;
        used_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
        OCTAVO_DCHECK(0 <= count && used_ <= num_bytes_);
        return reinterpret_cast<T*>(array);
    }

    // Bytes.
    int64_t used() const { return used_; }

  private:
    uint8_t* memory_;
    int64_t num_bytes_;
    int64_t used_ = 0;
};

}  // namespace octavo::OCTAVO_ISA
