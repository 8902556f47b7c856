"""A model's weights for the reference backend: dequantized to float32 when the model is loaded.

This takes more memory than the file. In return, a single function defines the values of all weights.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.backends.reference.linear import TiledMatrix
from octavo.weights.weight import Weight


class Parameters:
    """The values of `weights`: `vectors` and `matrices` by weight."""

    def __init__(self, weights: Iterable[Weight]) -> None:
        values = {weight: weight.to_float32() for weight in weights}
        self.vectors = {weight: array for weight, array in values.items() if array.ndim == 1}
        self.matrices = {weight: TiledMatrix(array) for weight, array in values.items() if array.ndim == 2}
