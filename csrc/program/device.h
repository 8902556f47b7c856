// What everything native runs on: a pool of threads and the kernels of one instruction set.
#pragma once

#include "kernels/kernels.h"
#include "platform/cpu.h"
#include "platform/thread_pool.h"

namespace octavo {

// The kernels compiled for `set`; null if they are not compiled in.
const Kernels* kernels_for(InstructionSet set);

struct Device {
    Device(InstructionSet set,
           int num_threads);  // throws std::runtime_error when this machine cannot run `set`

    InstructionSet instruction_set;
    const Kernels* kernels;
    ThreadPool pool;
};

}  // namespace octavo
