"""Tests that try many seeds in one case, and how many of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass


def every_seed(count: int) -> Callable[[Callable[[int], None]], Callable[[], None]]:
    """Run a test of one seed for each of the first `count` seeds. A failure says which seed it was."""

    def decorate(test: Callable[[int], None]) -> Callable[[], None]:
        @functools.wraps(test)
        def run() -> None:
            for seed in range(count):
                try:
                    test(seed)
                except BaseException as error:
                    error.add_note(f"this was seed {seed}")
                    raise

        del run.__wrapped__  # or pytest would look for a fixture named `seed`
        return run

    return decorate


@dataclass(frozen=True)
class Search:
    """How large the searches among random worlds are, and where they begin."""

    first_seed: int
    is_large: bool  # --all was given

    def seeds(self, usual: int, large: int, part: int = 0, num_parts: int = 1) -> range:
        """The seeds of one part of a search through `usual` worlds, or through `large` with `--all`."""
        count = large if self.is_large else usual
        return range(self.first_seed + part, self.first_seed + count, num_parts)
