// The barrier of a pool's threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "platform/thread_pool.h"

namespace octavo {

// Dissemination barrier (Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988). In
// round r every thread signals the one 2^r after it and waits for the one 2^r before it; after log2(threads)
// rounds each has heard of all. Nobody writes what others write: between two threads a barrier costs one
// cache line each way.
class DisseminationBarrier final : public Barrier {
  public:
    // `spins`: how often a thread looks before it lets others run, each time it waits.
    DisseminationBarrier(int num_threads, int spins);

    void wait(int thread) override;

  private:
    // 128 bytes, because some processors fetch lines of 64 bytes in pairs and others have lines of 128.
    struct alignas(128) Line {
        std::atomic<uint64_t> num_barriers{0};
    };

    Line& signal(int thread, int round) { return signals_[thread * num_rounds_ + round]; }

    int num_threads_, num_rounds_, spins_;
    std::unique_ptr<Line[]> passed_;  // [threads]: barriers that the thread itself has reached
    // [threads, rounds]: written by the one thread that signals in that round.
    std::unique_ptr<Line[]> signals_;
};

}  // namespace octavo
