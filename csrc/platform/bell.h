// How sleeping threads learn that there is work.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace octavo {

// Counts how often it was rung. Whoever rings publishes what was written before to all who hear it.
class Bell {
  public:
    void ring();

    // Wait until it has been rung more than `heard` times, spinning at first and then asleep; returns how
    // often.
    uint32_t wait(uint32_t heard, std::chrono::nanoseconds spin_for);

  private:
    bool spin(uint32_t heard, std::chrono::nanoseconds spin_for) const;

    std::atomic<uint32_t> rung_{0};
#if defined(__linux__)
    std::atomic<uint32_t> num_sleeping_{0};
#else
    std::mutex mutex_;
    std::condition_variable condition_;
#endif
};

}  // namespace octavo
