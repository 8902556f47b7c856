"""`Keys`: the keys and values by which a file describes its model. Every value is checked when it is read.

Nothing here knows GGUF or config.json.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping
from typing import Any

from octavo.errors import UnsupportedError, WeightError

_MAX_INTEGER = 2**31 - 1
_MAX_NUMBER = 1e38


class Keys:
    """Checked access to the `values` whose keys begin with `prefix`. Errors name `file` as their origin.

    Names are given without the prefix. A key that is absent or null has the value `default`; without a
    default that is an error. Methods raise WeightError, naming the file and the key, for a value that is
    missing, of another type or out of range.
    """

    def __init__(self, values: Mapping[str, Any], file: str, prefix: str = "") -> None:
        self._values = values
        self._file = file
        self._prefix = prefix

    def with_defaults(self, defaults: Mapping[str, Any]) -> Keys:
        """These keys, and the keys of `defaults` that are absent here. A key that is null stays null."""
        prefixed = {self._prefix + name: value for name, value in defaults.items()}
        return Keys({**prefixed, **self._values}, self._file, self._prefix)

    def __contains__(self, name: str) -> bool:
        return self._values.get(self._prefix + name) is not None

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number from 1 to the largest int32."""
        value = self._get(name, default)
        if type(value) is not int or not 1 <= value <= _MAX_INTEGER:
            raise self.wrong(name, f"an integer from 1 to {_MAX_INTEGER}")
        return value

    def number(self, name: str, default: float | None = None, above: float = 0.0) -> float:
        """A number greater than `above`, in the range of float32."""
        value = self._get(name, default)
        if type(value) not in (int, float) or not above < value < _MAX_NUMBER:
            raise self.wrong(name, f"a number greater than {above:g} and less than {_MAX_NUMBER:g}")
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        """True or false."""
        value = self._get(name, default)
        if type(value) is not bool:
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(name, default)
        if type(value) is not str:
            raise self.wrong(name, "a string")
        return value

    def section(self, name: str) -> Keys:
        """The keys of the mapping under `name`. An absent mapping has no keys."""
        value = self._get(name, {})
        if not isinstance(value, Mapping):
            raise self.wrong(name, "a mapping")
        return Keys(value, f"{self._file}: {name}")

    def first(self, name: str) -> Any:
        """The first element of the list under `name`."""
        value = self._get(name, None)
        if type(value) is not list or not value:
            raise self.wrong(name, "a list that is not empty")
        return value[0]

    def choices(self, name: str, count: int, allowed: Collection[str]) -> list[str]:
        """The list of `count` strings under `name`, each one of `allowed`."""
        value = self._get(name, None)
        if type(value) is not list or len(value) != count or not all(each in allowed for each in value):
            raise self.wrong(name, f"a list of {count}, each one of {', '.join(map(repr, allowed))}")
        return value

    def accept(self, name: str, *supported: Any) -> None:
        """Raise UnsupportedError when the key is present with a value that is not among `supported`."""
        if name in self and (value := self._get(name, None)) not in supported:
            offered = " or ".join(map(repr, supported)) or "models without it"
            raise UnsupportedError(f"{self._label(name)} is {reprlib.repr(value)}; supported: {offered}")

    def wrong(self, name: str, allowed: str) -> WeightError:
        """The error for a key whose value is not what is `allowed`."""
        return WeightError(
            f"{self._label(name)} must be {allowed}, not {reprlib.repr(self._get(name, None))}"
        )

    def _get(self, name: str, default: Any) -> Any:
        if name in self:
            return self._values[self._prefix + name]
        if default is None:
            raise WeightError(f"{self._label(name)} is missing")
        return default

    def _label(self, name: str) -> str:
        return f"{self._file}: key {self._prefix + name!r}"
