// Scratch memory, divided.
#pragma once

#include "platform/round_up.h"

namespace octavo::OCTAVO_ISA {

// Hands out pieces of a block of memory; only counts when the block is null.
class Pieces {
  public:
    explicit Pieces(uint8_t* memory) : memory_(memory) {}

    template <class T>
    T* take(int64_t count) {
        uint8_t* piece = memory_ + used_;
        used_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
        return reinterpret_cast<T*>(piece);
    }

    int64_t used() const { return used_; }

  private:
    uint8_t* memory_;
    int64_t used_ = 0;
};

}  // namespace octavo::OCTAVO_ISA
