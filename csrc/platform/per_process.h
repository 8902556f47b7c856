// What a process cannot take over from the one it was forked from.
#pragma once

#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

namespace octavo {

// An object that every process makes for itself when it first needs it. A fork copies locks as threads hold
// them, and data in the middle of a change, but not the threads: the child can neither wait for them nor free
// what they use, and leaves its copy alone.
template <class T>
class PerProcess {
  public:
    // Makes this process's own at once.
    explicit PerProcess(std::function<std::unique_ptr<T>()> make)
        : make_(std::move(make)), own_(new Own(make_())) {}

    ~PerProcess() {
        if (own_.load()->is_of_this_process()) {
            delete own_.load();
        }
    }

    PerProcess(const PerProcess&) = delete;
    PerProcess& operator=(const PerProcess&) = delete;

    // No lock guards this, since a fork could have copied it locked.
    T& get() {
        Own* found = own_.load();
        if (found->is_of_this_process()) {
            return *found->object;
        }
        auto fresh = std::make_unique<Own>(make_());
        return own_.compare_exchange_strong(found, fresh.get()) ? *fresh.release()->object : *found->object;
    }

  private:
    struct Own {
        explicit Own(std::unique_ptr<T> made) : object(std::move(made)) {}

        bool is_of_this_process() const { return process == getpid(); }

        const pid_t process = getpid();
        const std::unique_ptr<T> object;
    };

    const std::function<std::unique_ptr<T>()> make_;
    std::atomic<Own*> own_;
};

}  // namespace octavo
