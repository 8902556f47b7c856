#include "platform/barrier.h"

#include <thread>

#include "platform/spin.h"

namespace octavo {

namespace {

int log2_rounded_up(int value) {
    int rounds = 0;
    while (1 << rounds < value) {
        ++rounds;
    }
    return rounds;
}

}  // namespace

DisseminationBarrier::DisseminationBarrier(int num_threads, int spins)
    : num_threads_(num_threads),
      num_rounds_(log2_rounded_up(num_threads)),
      spins_(spins),
      passed_(new Line[num_threads]),
      signals_(new Line[num_threads * num_rounds_]) {}

void DisseminationBarrier::wait(int thread) {
    const uint64_t barrier = passed_[thread].num_barriers.load(std::memory_order_relaxed) + 1;
    passed_[thread].num_barriers.store(barrier, std::memory_order_relaxed);
    for (int round = 0; round < num_rounds_; ++round) {
        const int other = (thread + (1 << round)) % num_threads_;
        signal(other, round).num_barriers.store(barrier, std::memory_order_release);
        // More than `barrier`, if the other is at the next one already.
        for (int i = 0; signal(thread, round).num_barriers.load(std::memory_order_acquire) < barrier; ++i) {
            if (i < spins_) {
                pause_spinning();
            } else {
                std::this_thread::yield();
            }
        }
    }
}

}  // namespace octavo
