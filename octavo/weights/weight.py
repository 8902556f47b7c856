"""`Weight`: a tensor of a model file, with the bytes of the file and their format.

Nothing here knows a model or a backend. A weight is a value: loaders make it, models refer to it, and
backends read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from octavo.weights.dequantize import dequantize
from octavo.weights.formats import FORMATS, Format


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """One tensor in the format of its file.

    `shape` is logical and row-major, in elements: `(out_features, in_features)` for a matrix, `(size,)` for a
    vector. `data` is uint8 `[rows, bytes_per_row]` where rows is the product of all dimensions but the last
    (1 for a vector); it is normally a read-only view of the memory-mapped file and stays valid as long as the
    weight does.
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    data: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes the weight occupies in its file's format."""
        return self.data.nbytes

    def to_float32(self) -> np.ndarray:
        """The values as a new float32 array of `shape`. Raises UnsupportedError as `dequantize` does."""
        return dequantize(self.format, self.data).reshape(self.shape)

    def plus(self, offset: float) -> Weight:
        """This weight with `offset` added to each value, as float32 in memory of its own. For vectors only.

        Raises UnsupportedError as `dequantize` does.
        """
        values = self.to_float32() + np.float32(offset)
        return Weight(self.name, self.shape, FORMATS["F32"], values.reshape(1, -1).view(np.uint8))


class WeightSource(Protocol):
    """The tensors of a model by their names in its files: a GGUF file with all its shards, or a safetensors
    folder.
    """

    def names(self) -> list[str]:
        """Every tensor's name, in file order."""

    def __contains__(self, name: str) -> bool: ...

    def get(self, name: str) -> Weight:
        """The tensor `name`. Raises WeightError, naming it, when the file has no such tensor."""
