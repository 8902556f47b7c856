// Large allocations: aligned to cache lines, zeroed, on huge pages where there are some.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// Memory from the system, zeroed, at an address that is a multiple of 64; freed with the object. Throws
// std::bad_alloc. Pages count as used only once they are touched.
class Memory {
  public:
    explicit Memory(size_t num_bytes);
    ~Memory();
    Memory(Memory&& other) noexcept;
    Memory& operator=(Memory&& other) noexcept;
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    uint8_t* data() const { return data_; }

    size_t size() const { return size_; }

  private:
    uint8_t* data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace octavo
