"""The worker: turns a planned step into arrays, runs it on a backend, and samples."""
