"""How much one rendering of a chat template may do, and what it costs to do it.

The bounds are on turns of loops (a call counts as several) and on characters that are made, whether they end
up in the prompt or not; what could make very many at once is reckoned before it is made. Knows the values
that templates compute with, not how Jinja runs them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sized
from typing import Any

from jinja2 import TemplateError
from jinja2.utils import Namespace

# Five hundred messages, each compared with all, take a quarter of a million turns; a million take a second.
MAX_TURNS = 1_000_000
# A template that gathers a prompt of 100,000 tokens from 500 messages, one by one with +, makes 100 million.
MAX_CHARACTERS = 128_000_000

# What an item of a list counts for: the bytes of a short text of its own, and of the reference to it.
_ITEM = 64


class Budget:
    """What one rendering may still do. Every method that charges it raises TemplateError when it is spent."""

    def __init__(self) -> None:
        self._turns_left = MAX_TURNS
        self._characters_left = MAX_CHARACTERS

    def take(self, turns: int) -> None:
        """Charge for turns of a loop, or as much work."""
        self._turns_left -= turns
        if self._turns_left < 0:
            raise TemplateError(f"its loops and calls take more than {MAX_TURNS} turns")

    def spend(self, characters: int) -> None:
        """Charge for characters that are made, or about to be."""
        self._characters_left -= max(0, characters)
        if self._characters_left < 0:
            raise TemplateError(f"it makes more than {MAX_CHARACTERS} characters, or as much in lists")

    def spend_on_text_of(self, value: Any, times: int = 1) -> None:
        """Charge for writing `value`, in which one list may have to be written many times over."""
        pending = [value]
        while pending:
            value = pending.pop()
            self.spend((_ITEM + (len(value) if isinstance(value, str) else 0)) * times)
            match value:
                case str():
                    pass
                case Namespace():
                    pending.append(value._Namespace__attrs)
                case Mapping():
                    pending += value.items()
                case Collection():
                    pending += value

    def spend_on_format(self, form: str, values: Any) -> None:
        """Charge for `form % values`: for every width, and for all values in every place."""
        self.spend(len(form) + sum_of_numbers(form))
        if "*" in form and isinstance(values, tuple):
            self.spend(sum(abs(value) for value in values if isinstance(value, int)))
        self.spend_on_text_of(values, times=form.count("%"))

    def charged(self, value: Any) -> Any:
        """`value`, which has just been made."""
        self.spend(_size(value))
        return value

    def counted(self, items: Iterable[Any]) -> Iterable[Any]:
        """`items`, charged a turn each; something of known length is charged at once."""
        if not isinstance(items, Sized):
            return self._counted_one_by_one(items)
        self.take(len(items))
        return items

    def text_of(self, value: Any) -> str:
        """The text that `value` is, or is written as."""
        if isinstance(value, str):
            return value
        self.spend_on_text_of(value)
        return str(value)

    def join(self, separator: str, texts: Iterable[str]) -> str:
        """`separator.join(texts)`."""
        pieces = list(texts)
        self.spend(sum(map(len, pieces)) + len(separator) * len(pieces))
        return separator.join(pieces)

    def _counted_one_by_one(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.take(1)
            yield item


def operator_cost(operator: str, left: Any, right: Any) -> int:
    """Characters that `left operator right` makes, formats apart; arithmetic costs by how long it takes."""
    match operator, left, right:
        case "**", int(), int():
            return _power_cost(left, right)
        case _, int(), int():
            return left.bit_length() * right.bit_length() // 4096  # products of machine words
        case "*", int(), _:
            return left * _size(right)
        case "*", _, int():
            return _size(left) * right
        case "+", _, _:
            return _size(left) + _size(right)
    return 0


def growth(name: str, value: Any, /, *args: Any, **kwargs: Any) -> int:
    """By how many characters the result of a filter, or of a text's method, can exceed `value`."""
    reckon = _GROWTH.get(name)
    return reckon(value, *args, **kwargs) if reckon else 0


def sum_of_numbers(form: str) -> int:
    """No less than the widths and precisions in a format add up to."""
    return sum(map(int, re.findall(r"\d+", form)))


def _size(value: Any) -> int:
    match value:
        case str():
            return len(value)
        case list() | tuple() | dict() | set():
            return len(value) * _ITEM
    return 0


def _power_cost(base: int, exponent: int) -> int:
    return (base.bit_length() * max(0, exponent)) ** 2 // 4096


def _num_breaks(text: str, separator: str | None = None) -> int:
    return text.count(separator) if separator else sum(map(str.isspace, text))


_GROWTH: dict[str, Callable[..., int]] = {
    "center": lambda text, width=80, *_: width,
    "expandtabs": lambda text, tabsize=8: text.count("\t") * tabsize,
    "indent": lambda text, width=4, *_, **__: (
        (1 + _num_breaks(text)) * (len(width) if isinstance(width, str) else width)
    ),
    "ljust": lambda text, width, *_: width,
    "replace": lambda text, old, new, *_, **__: text.count(old) * len(new),
    "rjust": lambda text, width, *_: width,
    "round": lambda number, precision=0, *_, **__: _power_cost(10, abs(precision)),
    "rsplit": lambda text, sep=None, *_, **__: _num_breaks(text, sep) * _ITEM,
    "split": lambda text, sep=None, *_, **__: _num_breaks(text, sep) * _ITEM,
    "splitlines": lambda text, *_, **__: _num_breaks(text) * _ITEM,
    "zfill": lambda text, width: width,
}
