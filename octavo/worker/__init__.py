"""The worker: turns a planned step into arrays, runs the step on a backend, and samples."""
