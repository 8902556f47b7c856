"""The reference backend: numpy, float32, eager. Slow and simple: other backends are compared to it."""
