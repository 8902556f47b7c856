"""`WeightTable`: the named weights of one file or folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from octavo.errors import WeightError
from octavo.weights.weight import Weight


class WeightTable:
    """A WeightSource over weights that are already mapped. `path` is the file or folder they came from."""

    def __init__(self, path: Path, weights: Mapping[str, Weight]) -> None:
        self.path = path
        self._weights = weights

    def names(self) -> list[str]:
        """Every tensor's name, in file order."""
        return list(self._weights)

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def get(self, name: str) -> Weight:
        """The tensor `name`. Raises WeightError, naming it, when there is none."""
        if name not in self._weights:
            raise WeightError(f"{self.path}: no tensor {name!r} among the {len(self._weights)} there are")
        return self._weights[name]
