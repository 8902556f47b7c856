#include "platform/affinity.h"

#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <numeric>
#include <thread>

namespace octavo {

#if defined(__linux__)

namespace {

// Empty where there are more processors than the set holds.
cpu_set_t allowed() {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    return set;
}

}  // namespace

int current_processor() {
    return sched_getcpu();
}

void pin_to(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    sched_setaffinity(0, sizeof set, &set);
}

void move_to(int processor) {
    const cpu_set_t before = allowed();
    if (CPU_ISSET(processor, &before)) {
        pin_to(processor);
        sched_setaffinity(0, sizeof before, &before);
    }
}

#else

int current_processor() {
    return -1;
}

void pin_to(int) {}

void move_to(int) {}

#endif

std::vector<int> allowed_processors() {
    std::vector<int> processors;
#if defined(__linux__)
    const cpu_set_t set = allowed();
    for (int i = 0; i < CPU_SETSIZE; ++i) {
        if (CPU_ISSET(i, &set)) {
            processors.push_back(i);
        }
    }
#endif
    if (processors.empty()) {
        processors.resize(std::max(1u, std::thread::hardware_concurrency()));
        std::iota(processors.begin(), processors.end(), 0);
    }
    return processors;
}

}  // namespace octavo
