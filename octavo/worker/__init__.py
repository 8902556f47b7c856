"""The worker: lays out a planned step as arrays, runs it on a backend, and samples."""
