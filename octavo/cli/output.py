"""What commands write: answers to standard output, notes to standard error.

On a terminal nothing that a model wrote is obeyed as a control character.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, TextIO

import click

if TYPE_CHECKING:
    from rich.console import RenderableType

# C0 but for newline and tab, DEL and C1, which move cursors, set titles and colours, and answer queries.
_CONTROLS: Mapping[int, str] = MappingProxyType(
    {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
)

_UNLIMITED_COLUMNS = 10_000  # no table comes near it; rich measures text in columns, and needs a number


def write_answer(piece: str) -> None:
    """Write a piece of an answer: on a terminal with U+FFFD for control characters, elsewhere as it is."""
    # Without a word about colours click would take escape sequences out of what is piped.
    click.echo(_harmless(piece, sys.stdout), nl=False, color=True)


def write_table(table: RenderableType) -> None:
    """Write a table: on a terminal as wide as that is, elsewhere as wide as its text."""
    from rich.console import Console

    # What is not a terminal has 80 columns to rich, which cuts off what does not fit.
    Console(width=None if sys.stdout.isatty() else _UNLIMITED_COLUMNS).print(table)


def note(text: str) -> None:
    """Write a line beside the answers, dimmed."""
    click.secho(_harmless(text, sys.stderr), err=True, dim=True)


def note_stopping() -> None:
    """Say what the first Ctrl-C does, and what a second one would."""
    note("\nstopping after this step; Ctrl-C again to stop at once")


def _harmless(text: str, stream: TextIO) -> str:
    return text.translate(_CONTROLS) if stream.isatty() else text
