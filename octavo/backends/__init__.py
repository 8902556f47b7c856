"""Backends compute a model's steps. Each implements `Backend` and `Ops`, and none knows a model."""
