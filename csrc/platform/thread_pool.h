// The threads that run a program together: persistent, pinned, spinning for a while before they sleep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "platform/inline.h"

namespace octavo {

// Threads that take part in the same job meet here. Nobody leaves before all have come.
class Barrier {
  public:
    virtual ~Barrier() = default;
    virtual void wait(int thread) = 0;
};

// A thread's part in a job, as kernels see it. Kernels divide their work by `index` and `count`, and what
// they compute must not depend on either.
struct Worker {
    int index;  // 0 .. count - 1; 0 is the calling thread
    int count;
    Barrier* barrier;
    uint8_t* scratch;  // this thread's own memory, a multiple of 64; its content does not survive a kernel
    size_t scratch_bytes;

    OCTAVO_INLINE void wait() {
        if (count > 1)
            barrier->wait(index);
    }
};

// A range of [0, total) for this thread: contiguous, as equal as possible, the same every time.
struct Range {
    int64_t begin, end;
};

OCTAVO_INLINE Range share(int64_t total, const Worker& worker) {
    return {total * worker.index / worker.count, total * (worker.index + 1) / worker.count};
}

class ThreadPool {
  public:
    // `num_threads` >= 1, the caller of `run` included. Threads are pinned to different processors of the
    // process's affinity mask while there are enough of them.
    ThreadPool(int num_threads, size_t scratch_bytes);
    ~ThreadPool();

    int num_threads() const;

    // Run `job` on all threads, once each, and return when all have finished. Not reentrant. After a fork the
    // threads are started anew.
    void run(const std::function<void(Worker&)>& job);

    // Nanoseconds that one barrier takes: the state of the machine, for benchmarks.
    double barrier_ns();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace octavo
