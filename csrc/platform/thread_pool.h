// The threads that run a program together. They persist, are pinned, and spin for a while before they sleep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "platform/inline.h"

namespace octavo {

// Where the threads of a job wait for each other: `wait` returns when all of them have called it.
class Barrier {
  public:
    virtual ~Barrier() = default;
    virtual void wait(int thread) = 0;
};

// How many items of a thread's share have been taken. It has a cache line of its own.
struct alignas(64) Counter {
    int64_t taken = 0;
};

// A thread's part in a job, as kernels see it. Kernels divide their work by `index` and `count`, and what
// they compute must not depend on either.
struct Worker {
    int index;  // 0 .. count - 1; 0 is the calling thread
    int count;
    Barrier* barrier;
    uint8_t* scratch;  // this thread's own memory, a multiple of 64; its content does not survive a kernel
    size_t scratch_bytes;
    Counter* counters[2];  // [count] each, for the queues of a job in alternation
    int num_queues = 0;    // that this thread has made in this job

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

// Items 0 .. total - 1 of work, each handed to one thread. A thread takes the items of its own share in
// order, then the items that are left of other threads' shares. So a slow thread (its processor is slow or
// shared) takes fewer items.
//
// All threads make a queue of the same total and ask until it is empty. A barrier must lie between two
// queues.
class WorkQueue {
  public:
    OCTAVO_INLINE WorkQueue(Worker& worker, int64_t total)
        : total_(total),
          count_(worker.count),
          counters_(worker.counters[worker.num_queues % 2]),
          whose_(worker.index) {
        worker.counters[++worker.num_queues % 2][worker.index].taken = 0;  // for the next queue
    }

    // The next item, or `total` when there are no more.
    OCTAVO_INLINE int64_t next() {
        for (; num_done_ < count_; ++num_done_) {
            const int64_t begin = total_ * whose_ / count_, end = total_ * (whose_ + 1) / count_;
            const int64_t item = begin + __atomic_fetch_add(&counters_[whose_].taken, 1, __ATOMIC_RELAXED);
            if (item < end) {
                return item;
            }
            whose_ = whose_ + 1 < count_ ? whose_ + 1 : 0;
        }
        return total_;
    }

  private:
    int64_t total_;
    int count_;
    Counter* counters_;
    int whose_;         // the thread from whose share items are taken
    int num_done_ = 0;  // shares of which nothing is left
};

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
