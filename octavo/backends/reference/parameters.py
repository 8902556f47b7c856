"""A model's weights as the reference backend computes with them: dequantized to float32, once, when the model
is loaded.

That takes more memory than the file, and is the point of an oracle: what a weight is worth is decided in one
place.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.backends.reference.linear import TiledMatrix
from octavo.weights.weight import Weight


class Parameters:
    """The values of `weights`: `vectors` and `matrices`, by the weight they were made from."""

    def __init__(self, weights: Iterable[Weight]) -> None:
        values = {weight: weight.to_float32() for weight in weights}
        self.vectors = {weight: array for weight, array in values.items() if array.ndim == 1}
        self.matrices = {weight: TiledMatrix(array) for weight, array in values.items() if array.ndim == 2}
