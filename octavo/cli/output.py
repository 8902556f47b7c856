"""What commands write: answers to standard output, notes to standard error.

On a terminal nothing that a model wrote is obeyed as a control character.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import TextIO

import click

# C0 but for newline and tab, DEL and C1, which move cursors, set titles and colours, and answer queries.
_CONTROLS: Mapping[int, str] = MappingProxyType(
    {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
)


def write_answer(piece: str) -> None:
    """Write a piece of an answer: on a terminal with U+FFFD for control characters, elsewhere as it is."""
    # Without a word about colours click would take escape sequences out of what is piped.
    click.echo(_harmless(piece, sys.stdout), nl=False, color=True)


def note(text: str) -> None:
    """Write a line beside the answers, dimmed."""
    click.secho(_harmless(text, sys.stderr), err=True, dim=True)


def note_stopping() -> None:
    """Say what the first Ctrl-C does, and what a second one would."""
    note("\nstopping after this step; Ctrl-C again to stop at once")


def _harmless(text: str, stream: TextIO) -> str:
    return text.translate(_CONTROLS) if stream.isatty() else text
