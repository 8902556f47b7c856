#include "platform/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "platform/affinity.h"
#include "platform/barrier.h"
#include "platform/bell.h"
#include "platform/memory.h"
#include "platform/per_process.h"

namespace octavo {

namespace {

using Job = std::function<void(Worker&)>;
using Clock = std::chrono::steady_clock;

// Longer than what lies between two instructions of a program or two short programs; an idle device sleeps.
constexpr std::chrono::microseconds SPIN_FOR_JOB{100};

// About 100 us: longer than any kernel's threads wait for each other, unless one of them lost its processor.
constexpr int BARRIER_SPINS = 2000;

// The threads of a pool.
class Crew {
  public:
    Crew(int num_threads, const std::vector<Memory>& scratch);

    ~Crew() { dismiss(); }

    void run(const Job& job);

  private:
    int num_processors() const { return static_cast<int>(processors_.size()); }

    void work(int index);
    void take_part(int index) noexcept;
    void leave_pinned_processors() const;
    void dismiss();

    const int num_threads_;
    const std::vector<Memory>& scratch_;
    const std::vector<int> processors_ = allowed_processors();
    // More threads than processors: one that spins keeps another from its work.
    const bool crowded_ = num_threads_ > num_processors();
    // With fewer, another device may have taken the same ones, and the system knows better which are free.
    const bool pinned_ = num_threads_ == num_processors();
    DisseminationBarrier barrier_;
    Bell bell_;
    const Job* job_ = nullptr;       // null: go home
    std::vector<Counter> counters_;  // [2][num_threads]
    std::mutex running_;
    std::vector<std::thread> threads_;
};

Crew::Crew(int num_threads, const std::vector<Memory>& scratch)
    : num_threads_(num_threads),
      scratch_(scratch),
      barrier_(num_threads, crowded_ ? 0 : BARRIER_SPINS),
      counters_(2 * num_threads) {
    try {
        for (int index = 1; index < num_threads; ++index) {
            threads_.emplace_back([this, index] { work(index); });
        }
    } catch (...) {
        dismiss();
        throw;
    }
}

void Crew::dismiss() {
    job_ = nullptr;
    bell_.ring();
    for (std::thread& thread : threads_) {
        thread.join();
    }
}

void Crew::work(int index) {
    if (pinned_) {
        pin_to(processors_[index]);
    }
    for (uint32_t heard = 0;;) {
        heard = bell_.wait(heard, crowded_ ? std::chrono::microseconds(0) : SPIN_FOR_JOB);
        if (job_ == nullptr) {
            return;
        }
        take_part(index);
    }
}

void Crew::take_part(int index) noexcept {
    const Memory& scratch = scratch_[index];
    Worker worker{index,          num_threads_,   &barrier_,
                  scratch.data(), scratch.size(), {counters_.data(), counters_.data() + num_threads_}};
    (*job_)(worker);
    worker.wait();
}

// The caller is not pinned: that takes two system calls for each job, over a microsecond, and other code runs
// on it in between. But on a worker's processor the two would take turns.
void Crew::leave_pinned_processors() const {
    const auto workers = processors_.begin() + 1, end = processors_.begin() + num_threads_;
    if (std::find(workers, end, current_processor()) != end) {
        move_to(processors_[0]);
    }
}

void Crew::run(const Job& job) {
    const std::lock_guard<std::mutex> lock(running_);
    if (pinned_) {
        leave_pinned_processors();
    }
    job_ = &job;
    std::fill(counters_.begin(), counters_.end(), Counter{});
    bell_.ring();
    take_part(0);
}

std::vector<Memory> make_scratch(int count, size_t num_bytes) {
    std::vector<Memory> scratch;
    for (int i = 0; i < count; ++i) {
        scratch.emplace_back(num_bytes);
    }
    return scratch;
}

}  // namespace

struct ThreadPool::State {
    State(int count, size_t scratch_bytes)
        : num_threads(count),
          scratch(make_scratch(count, scratch_bytes)),
          crew([this] { return std::make_unique<Crew>(num_threads, scratch); }) {}

    const int num_threads;
    const std::vector<Memory> scratch;
    PerProcess<Crew> crew;
};

ThreadPool::ThreadPool(int num_threads, size_t scratch_bytes)
    : state_(new State(num_threads, scratch_bytes)) {}

ThreadPool::~ThreadPool() = default;

int ThreadPool::num_threads() const {
    return state_->num_threads;
}

void ThreadPool::run(const Job& job) {
    state_->crew.get().run(job);
}

double ThreadPool::barrier_ns() {
    constexpr int BARRIERS_PER_SAMPLE = 20;
    constexpr std::chrono::milliseconds SAMPLE_FOR{3};
    std::vector<double> samples;
    bool enough = false;  // thread 0 writes it, the barrier after that publishes it
    run([&](Worker& worker) {
        const Clock::time_point begin = Clock::now();
        while (!enough) {
            const Clock::time_point start = Clock::now();
            for (int i = 0; i < BARRIERS_PER_SAMPLE; ++i) {
                worker.wait();
            }
            if (worker.index == 0) {
                const Clock::time_point end = Clock::now();
                samples.push_back(std::chrono::duration<double, std::nano>(end - start).count() /
                                  BARRIERS_PER_SAMPLE);
                enough = end - begin > SAMPLE_FOR;
            }
            worker.wait();
        }
    });
    const auto median = samples.begin() + samples.size() / 2;
    std::nth_element(samples.begin(), median, samples.end());
    return *median;
}

}  // namespace octavo
