"""The native backend: models recorded once as programs of C++ kernels (csrc/), each step one call."""
