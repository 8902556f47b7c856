"""Finds the texts of special tokens in a text, by the same rules as the tokenizer itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property


class SpecialTokenFinder:
    """Finds special tokens from left to right, without overlaps. At each position the longest one counts."""

    def __init__(self, ids_by_text: Mapping[str, int]) -> None:
        self._ids = dict(ids_by_text)
        self._lengths = sorted({len(text) for text in self._ids}, reverse=True)
        firsts = "".join(re.escape(first) for first in sorted({text[0] for text in self._ids}))
        self._first = re.compile(f"[{firsts}]" if firsts else r"(?!)")

    def find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """(start, end, token id) of every special token in `text`."""
        end = 0
        while match := self._first.search(text, end):
            start = match.start()
            length = self._longest_at(text, start)
            end = start + (length or 1)
            if length:
                yield start, end, self._ids[text[start:end]]

    def find_starts(self, text: str) -> Iterator[int]:
        """The positions where a special token starts, or would start if more text followed `text`."""
        for match in self._first.finditer(text):
            start = match.start()
            if self._longest_at(text, start) or text[start : start + self._lengths[0]] in self._beginnings:
                yield start

    def _longest_at(self, text: str, start: int) -> int:
        """Length of the longest special token at `start`, 0 if there is none."""
        return next((length for length in self._lengths if text[start : start + length] in self._ids), 0)

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        return frozenset(text[:length] for text in self._ids for length in range(1, len(text)))
