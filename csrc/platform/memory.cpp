#include "platform/memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

#include "platform/round_up.h"

namespace octavo {

namespace {

constexpr size_t HUGE_PAGE = 2 << 20;        // of x86-64, and of Arm with pages of 4 KB
constexpr size_t HUGE_FROM = 2 * HUGE_PAGE;  // below, padding could double it

bool is_large(size_t num_bytes) {
    return num_bytes >= HUGE_FROM;
}

// The bytes that are mapped for `num_bytes`: whole huge pages if it is large.
size_t mapped_bytes(size_t num_bytes) {
    return is_large(num_bytes) ? round_up(num_bytes, HUGE_PAGE) : num_bytes;
}

uint8_t* map(size_t num_bytes) {
    void* data = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        throw std::bad_alloc();
    }
    return static_cast<uint8_t*>(data);
}

void unmap(uint8_t* data, size_t num_bytes) {
    if (num_bytes > 0) {
        munmap(data, num_bytes);
    }
}

// Maps one huge page more than is wanted and gives back what lies before and behind.
uint8_t* map_aligned(size_t num_bytes) {
    uint8_t* data = map(num_bytes + HUGE_PAGE);
    const size_t before =
        round_up(reinterpret_cast<size_t>(data), HUGE_PAGE) - reinterpret_cast<size_t>(data);
    unmap(data, before);
    unmap(data + before + num_bytes, HUGE_PAGE - before);
    return data + before;
}

}  // namespace

Memory::Memory(size_t num_bytes) : size_(num_bytes) {
    if (num_bytes > PTRDIFF_MAX - 2 * HUGE_PAGE) {
        throw std::bad_alloc();
    }
    if (is_large(num_bytes)) {
        data_ = map_aligned(mapped_bytes(num_bytes));
#if defined(MADV_HUGEPAGE)
        madvise(data_, mapped_bytes(num_bytes),
                MADV_HUGEPAGE);  // a wish: without huge pages all works the same
#endif
    } else if (num_bytes > 0) {
        data_ = map(num_bytes);
    }
}

Memory::~Memory() {
    unmap(data_, mapped_bytes(size_));
}

Memory::Memory(Memory&& other) noexcept {
    *this = std::move(other);
}

Memory& Memory::operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

}  // namespace octavo
