"""Backends: what computes. Each implements `Backend` and `Ops`; none knows a model."""
