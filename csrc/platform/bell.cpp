#include "platform/bell.h"

#include "platform/spin.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#endif

namespace octavo {

namespace {

constexpr int SPINS_PER_LOOK = 32;  // the clock takes about as long as one pause: look at it now and then

}  // namespace

bool Bell::spin(uint32_t heard, std::chrono::nanoseconds spin_for) const {
    if (spin_for.count() == 0) {
        return false;
    }
    const auto end = std::chrono::steady_clock::now() + spin_for;
    do {
        for (int i = 0; i < SPINS_PER_LOOK; ++i) {
            if (rung_.load(std::memory_order_acquire) != heard) {
                return true;
            }
            pause_spinning();
        }
    } while (std::chrono::steady_clock::now() < end);
    return false;
}

#if defined(__linux__)

namespace {

void futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, nullptr, nullptr, 0);
}

}  // namespace

// Either the ringer sees that someone sleeps, or the sleeper sees that it rang: both orders are sequentially
// consistent, and the system compares once more before it lets a thread sleep.
void Bell::ring() {
    rung_.fetch_add(1);
    if (num_sleeping_.load() > 0) {
        futex(rung_, FUTEX_WAKE_PRIVATE, INT_MAX);
    }
}

uint32_t Bell::wait(uint32_t heard, std::chrono::nanoseconds spin_for) {
    if (!spin(heard, spin_for)) {
        num_sleeping_.fetch_add(1);
        while (rung_.load() == heard) {
            futex(rung_, FUTEX_WAIT_PRIVATE, heard);
        }
        num_sleeping_.fetch_sub(1);
    }
    return rung_.load(std::memory_order_acquire);
}

#else

void Bell::ring() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        rung_.fetch_add(1);
    }
    condition_.notify_all();
}

uint32_t Bell::wait(uint32_t heard, std::chrono::nanoseconds spin_for) {
    if (!spin(heard, spin_for)) {
        std::unique_lock<std::mutex> lock(mutex_);
        condition_.wait(lock, [&] { return rung_.load() != heard; });
    }
    return rung_.load(std::memory_order_acquire);
}

#endif

}  // namespace octavo
