"""Models: what a file says of itself (`spec`), and one module per family, in the `Ops` vocabulary."""
