#include "kernels/probes.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "platform/memory.h"
#include "program/device.h"

namespace nb = nanobind;

namespace octavo {

namespace {

constexpr int NUM_TRIALS = 10;           // the best counts: it was disturbed least
constexpr int64_t NUM_ROUNDS = 200'000;  // of a trial: about a millisecond

constexpr std::pair<const char*, Arithmetic> ARITHMETICS[] = {
    {"f32", Arithmetic::f32},
    {"bf16", Arithmetic::bf16},
    {"int8", Arithmetic::int8},
    {"bf16_tiles", Arithmetic::bf16_tiles},
    {"int8_tiles", Arithmetic::int8_tiles},
};

// Seconds that the fastest of NUM_TRIALS runs of `job` takes.
double fastest(ThreadPool& pool, const std::function<void(Worker&)>& job) {
    double least = std::numeric_limits<double>::infinity();
    for (int trial = 0; trial < NUM_TRIALS; ++trial) {
        const auto begun = std::chrono::steady_clock::now();
        pool.run(job);
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begun;
        least = std::min(least, taken.count());
    }
    return least;
}

double measure_read_bandwidth(Device& device, int64_t num_bytes) {
    if (num_bytes < 64 * 1024) {
        throw nb::value_error(
            ("num_bytes is " + std::to_string(num_bytes) + "; it must be at least 65536").c_str());
    }
    const WithoutGil without_gil;
    const Memory memory(num_bytes);
    device.pool.run([&](Worker& worker) {  // pages that were never written to are all one page
        const Range bytes = share(num_bytes, worker);
        std::memset(memory.data() + bytes.begin, 1, bytes.end - bytes.begin);
    });
    return num_bytes / fastest(device.pool, [&](Worker& worker) {
               device.kernels->probe_memory(memory.data(), num_bytes, worker);
           });
}

Arithmetic arithmetic_named(const std::string& name) {
    std::string known;
    for (const auto& [each, arithmetic] : ARITHMETICS) {
        if (name == each) {
            return arithmetic;
        }
        known += (known.empty() ? "" : ", ") + std::string(each);
    }
    throw nb::value_error(("there is no arithmetic '" + name + "'; there are " + known).c_str());
}

double measure_arithmetic(Device& device, const std::string& name) {
    const Arithmetic arithmetic = arithmetic_named(name);
    const WithoutGil without_gil;
    std::vector<int64_t> num_operations(device.pool.num_threads());
    const double seconds = fastest(device.pool, [&](Worker& worker) {
        num_operations[worker.index] = device.kernels->probe_arithmetic(arithmetic, NUM_ROUNDS, worker);
    });
    int64_t total = 0;
    for (const int64_t each : num_operations) {
        total += each;
    }
    return total / seconds;
}

}  // namespace

void bind_probes(nb::module_& module) {
    module.def("measure_read_bandwidth", &measure_read_bandwidth, nb::arg("device"), nb::arg("num_bytes"),
               "Bytes per second that all threads together read from a buffer of `num_bytes`, at best.");
    module.def(
        "measure_arithmetic", &measure_arithmetic, nb::arg("device"), nb::arg("arithmetic"),
        "Multiplications and additions per second of all threads together, at best, of 'f32', 'bf16',\n"
        "'int8', 'bf16_tiles' or 'int8_tiles' (0 where the instruction set has no tiles).");
}

}  // namespace octavo
