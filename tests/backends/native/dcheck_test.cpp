// What OCTAVO_DCHECK guards, for test_dcheck.py.
//
//   dcheck_test CASE   aborts where the case breaks a check that is compiled in; prints "done" otherwise
#include <cstdio>
#include <cstring>

#include "kernels/bump_allocator.h"
#include "program/instructions.h"

namespace octavo {

namespace {

alignas(64) uint8_t memory[256];

float* row_of(const View& view, int64_t t) {
    Step step{};
    step.num_tokens = 4;
    step.buffers.push_back({reinterpret_cast<float*>(memory), 16});
    return step.row(view, t);
}

void run(const char* name) {
    portable::BumpAllocator scratch(memory, sizeof memory);
    if (std::strcmp(name, "scratch-fits") == 0) {
        scratch.allocate<float>(33);  // 192 bytes, rounded up
        scratch.allocate<uint8_t>(64);
    } else if (std::strcmp(name, "scratch-overflows") == 0) {
        scratch.allocate<float>(33);
        scratch.allocate<uint8_t>(65);
    } else if (std::strcmp(name, "counting") == 0) {
        portable::BumpAllocator::counting().allocate<float>(int64_t{1} << 40);
    } else if (std::strcmp(name, "row") == 0) {
        row_of({0, 8, 8}, 3);
    } else if (std::strcmp(name, "row-past-the-step") == 0) {
        row_of({0, 8, 8}, 4);
    } else if (std::strcmp(name, "row-past-the-buffer") == 0) {
        row_of({0, 9, 8}, 0);
    } else if (std::strcmp(name, "no-such-buffer") == 0) {
        row_of({1, 0, 8}, 0);
    }
}

}  // namespace

}  // namespace octavo

int main(int, char** arguments) {
    octavo::run(arguments[1]);
    std::puts("done");
}
