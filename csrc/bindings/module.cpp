// The extension module: every part of it binds itself.
#include <nanobind/nanobind.h>

#include "bindings/bindings.h"

NB_MODULE(_native, module) {
    // What a daemon thread holds when the interpreter ends is never freed, by no one's fault.
    nanobind::set_leak_warnings(false);
    module.doc() = "The native backend's kernels, thread pool and programs.";
    octavo::bind_platform(module);
    octavo::bind_kv_cache(module);
    octavo::bind_packing(module);
    octavo::bind_program(module);
    octavo::bind_sampling(module);
    octavo::bind_probes(module);
}
