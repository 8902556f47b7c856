// The parts of the module, each bound by the file of its name.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo {

void bind_platform(nanobind::module_& module);  // instruction sets; Device: threads and what they run
void bind_packing(nanobind::module_& module);   // memory, and matrices packed into it
void bind_kv_cache(nanobind::module_& module);
void bind_program(nanobind::module_& module);  // packed matrices and programs of them
void bind_sampling(nanobind::module_& module);
void bind_probes(nanobind::module_& module);  // the limits of the machine, for benchmarks

}  // namespace octavo
