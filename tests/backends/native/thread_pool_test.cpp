// The thread pool alone, for test_platform.py: says what is wrong and returns 1, or returns 0.
#include "platform/thread_pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr size_t SCRATCH_BYTES = 1000;

int times_taken[50];

void expect(bool right, const char* what) {
    if (!right) {
        std::fprintf(stderr, "%s\n", what);
        std::exit(1);
    }
}

// Every thread writes its number, and after a barrier adds up what all have written: plain memory, so that a
// barrier that lets someone through too soon gives a wrong sum, or a report of the thread sanitizer.
void expect_barriers_to_order(octavo::ThreadPool& pool, int num_rounds) {
    const int count = pool.num_threads();
    std::vector<int> written(count, -1), runs(count, 0);
    pool.run([&](octavo::Worker& worker) {
        ++runs[worker.index];
        expect(worker.count == count, "a worker knows how many there are");
        for (int round = 0; round < num_rounds; ++round) {
            written[worker.index] = worker.index + round;
            worker.wait();
            int sum = 0;
            for (int value : written) {
                sum += value;
            }
            expect(sum == count * (count - 1) / 2 + count * round, "a barrier orders memory");
            worker.wait();
        }
    });
    expect(runs == std::vector<int>(count, 1), "a job runs once on each thread");
}

// The last thread takes none before the others have taken all, which also includes what was its own share.
void expect_turns_at_every_number_once(octavo::ThreadPool& pool, int num_rounds) {
    const int count = pool.num_threads();
    pool.run([&](octavo::Worker& worker) {
        for (int round = 0; round < num_rounds; ++round) {
            const int64_t total = round * 7 % 50;
            octavo::WorkQueue queue(worker, total);
            if (worker.index == count - 1 && count > 1) {
                worker.wait();
                expect(queue.next() == total, "whoever comes late gets nothing");
            } else {
                for (int64_t number; (number = queue.next()) < total;) {
                    __atomic_fetch_add(&times_taken[number], 1, __ATOMIC_RELAXED);
                }
                worker.wait();
            }
            worker.wait();
            for (int64_t i = worker.index; i < 50; i += count) {
                expect(times_taken[i] == (i < total), "each number is taken once");
                times_taken[i] = 0;
            }
            worker.wait();
        }
    });
}

void expect_own_scratch(octavo::ThreadPool& pool) {
    pool.run([&](octavo::Worker& worker) {
        expect(worker.scratch_bytes >= SCRATCH_BYTES, "scratch is as large as asked for");
        expect(reinterpret_cast<size_t>(worker.scratch) % 64 == 0, "scratch begins on a cache line");
        std::memset(worker.scratch, worker.index, worker.scratch_bytes);
        worker.wait();
        for (size_t i = 0; i < worker.scratch_bytes; ++i) {
            expect(worker.scratch[i] == static_cast<uint8_t>(worker.index), "scratch is a thread's own");
        }
    });
}

void expect_callers_to_take_turns(octavo::ThreadPool& pool) {
    std::vector<std::thread> callers;
    for (int i = 0; i < 3; ++i) {
        callers.emplace_back([&] {
            for (int job = 0; job < 50; ++job) {
                expect_barriers_to_order(pool, 2);
            }
        });
    }
    for (std::thread& caller : callers) {
        caller.join();
    }
}

void expect_a_fork_to_work(octavo::ThreadPool& pool) {
    const pid_t child = fork();
    if (child == 0) {
        expect_barriers_to_order(pool, 10);
        std::_Exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a forked process has threads of its own");
}

}  // namespace

int main(int argc, char** argv) {
    const int num_threads = argc == 2 ? std::atoi(argv[1]) : 1;
    octavo::ThreadPool pool(num_threads, SCRATCH_BYTES);
    expect_barriers_to_order(pool, 200);
    expect_turns_at_every_number_once(pool, 100);
    expect_own_scratch(pool);
    expect_callers_to_take_turns(pool);
    expect_a_fork_to_work(pool);
    expect_barriers_to_order(pool, 10);
    expect(num_threads == 1 || pool.barrier_ns() > 0, "a barrier takes time");
    return 0;
}
