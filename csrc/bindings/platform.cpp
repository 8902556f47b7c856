#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "platform/cpu.h"
#include "program/device.h"

namespace nb = nanobind;

namespace octavo {

namespace {

constexpr int MAX_THREADS = 1024;  // processors that a cpu_set_t can hold
constexpr InstructionSet ALL[] = {InstructionSet::portable, InstructionSet::avx2, InstructionSet::avx512,
                                  InstructionSet::avx512_bf16, InstructionSet::amx};

std::vector<std::string> usable_names() {
    std::vector<std::string> names;
    for (InstructionSet set : usable_instruction_sets()) {
        names.push_back(name_of(set));
    }
    return names;
}

std::string joined(const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) {
        text += (text.empty() ? "" : ", ") + name;
    }
    return text;
}

InstructionSet instruction_set_of(const std::string& name) {
    std::vector<std::string> names;
    for (InstructionSet set : ALL) {
        if (name == name_of(set)) {
            return set;
        }
        names.push_back(name_of(set));
    }
    throw nb::value_error(("instruction set '" + name + "' is none of " + joined(names)).c_str());
}

void check_usable(InstructionSet wanted) {
    for (InstructionSet set : usable_instruction_sets()) {
        if (set == wanted) {
            return;
        }
    }
    throw std::runtime_error(std::string("this build or this machine has no ") + name_of(wanted) +
                             "; it can run " + joined(usable_names()));
}

void check_num_threads(int num_threads) {
    if (num_threads < 1 || num_threads > MAX_THREADS) {
        throw nb::value_error(("num_threads must be from 1 to " + std::to_string(MAX_THREADS) + ", not " +
                               std::to_string(num_threads))
                                  .c_str());
    }
}

void make_device(Device* device, const std::string& instruction_set, int num_threads) {
    const InstructionSet set = instruction_set_of(instruction_set);
    check_num_threads(num_threads);
    check_usable(set);
    new (device) Device(set, num_threads);
}

}  // namespace

void bind_platform(nb::module_& module) {
    module.def("usable_instruction_sets", usable_names,
               "The instruction sets that are compiled in and that this machine can run, slowest first.");

    nb::class_<Device>(module, "Device", "Threads, and the kernels that they run.")
        .def("__init__", make_device, nb::arg("instruction_set"), nb::arg("num_threads"),
             "Starts `num_threads` threads, the calling one included.\n\n"
             "Raises ValueError for an unknown instruction set or a number of threads that is not from 1 to\n"
             "1024, RuntimeError where this machine cannot run it.")
        .def_prop_ro(
            "instruction_set", [](const Device& device) { return name_of(device.instruction_set); },
            "The instruction set of its kernels.")
        .def_prop_ro(
            "num_threads", [](const Device& device) { return device.pool.num_threads(); },
            "How many threads run a job, the one that asks for it included.")
        .def(
            "barrier_ns", [](Device& device) { return device.pool.barrier_ns(); },
            nb::call_guard<WithoutGil>(),
            "Nanoseconds that a barrier of all threads takes, the median of a few milliseconds: the state "
            "of\n"
            "the machine, for benchmarks.");
}

}  // namespace octavo
