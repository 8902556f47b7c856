"""Writes answers to standard output and notes to standard error.

On a terminal, control characters that a model wrote are replaced, so that the terminal does not obey them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, TextIO

import click

if TYPE_CHECKING:
    from rich.console import RenderableType

# C0 (except newline and tab), DEL and C1. They move the cursor, set titles and colours, and send queries.
_CONTROLS: Mapping[int, str] = MappingProxyType(
    {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
)

_UNLIMITED_COLUMNS = 10_000  # wider than any table; rich needs a number


def write_answer(piece: str) -> None:
    """Write a part of an answer: on a terminal with U+FFFD for control characters, elsewhere unchanged."""
    # Without color=True, click would remove escape sequences from piped output.
    click.echo(_harmless(piece, sys.stdout), nl=False, color=True)


def write_table(table: RenderableType) -> None:
    """Write a table, at most as wide as the terminal. Elsewhere it is as wide as its text."""
    from rich.console import Console

    # Without a terminal, rich assumes 80 columns and cuts off text that does not fit.
    Console(width=None if sys.stdout.isatty() else _UNLIMITED_COLUMNS).print(table)


def note(text: str) -> None:
    """Write a line to standard error, dimmed."""
    click.secho(_harmless(text, sys.stderr), err=True, dim=True)


def note_stopping() -> None:
    """Say what the first Ctrl-C does, and what a second one will do."""
    note("\nstopping after this step; Ctrl-C again to stop at once")


def _harmless(text: str, stream: TextIO) -> str:
    return text.translate(_CONTROLS) if stream.isatty() else text
