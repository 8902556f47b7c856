"""Models: one module a family, written in the `Ops` vocabulary, and what families share."""
