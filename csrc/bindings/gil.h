// The interpreter's lock, which native code gives up while it runs.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

namespace octavo {

// Releases the interpreter's lock when it is made, and takes it again when it is destroyed.
//
// Once the interpreter finalizes, only the thread that finalizes it gets the lock. Any other hangs, until the
// process ends: Python sees to that from 3.14 on. Before, it calls pthread_exit, which glibc makes an
// exception of, and no destructor and none of nanobind's functions would let that pass: the process would
// abort.
class WithoutGil {
  public:
    WithoutGil() : state_(PyEval_SaveThread()) {}

    ~WithoutGil() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) {
                pause();
            }
        }
    }

    WithoutGil(const WithoutGil&) = delete;
    WithoutGil& operator=(const WithoutGil&) = delete;

  private:
    PyThreadState* state_;
};

}  // namespace octavo
