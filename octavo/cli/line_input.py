"""Reads a user's messages in a chat. A terminal's lines can be edited, and their history is kept."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

PROMPT = ">>> "
CONTINUATION = "... "
QUOTES = '"""'

_HISTORY_LINES = 1000


ReadLine = Callable[[str], str]  # prompt → line without its newline; raises EOFError at the end of input


class UnfinishedMessageError(EOFError):
    """The end of input came within a message."""


def read_message(read_line: ReadLine) -> str:
    """Read one message. Lines are joined by a backslash at the end of a line, or by three quotes around them.

    Raises EOFError at the end of input, and UnfinishedMessageError if the input ends within a message.
    """
    line = read_line(PROMPT)
    try:
        if line.lstrip().startswith(QUOTES):
            return _read_quoted(line.lstrip().removeprefix(QUOTES), read_line)
        return _read_continued(line, read_line)
    except EOFError:
        raise UnfinishedMessageError from None


def _read_continued(line: str, read_line: ReadLine) -> str:
    lines = []
    while line.endswith("\\"):
        lines.append(line.removesuffix("\\"))
        line = read_line(CONTINUATION)
    return "\n".join([*lines, line])


def _read_quoted(line: str, read_line: ReadLine) -> str:
    lines = []
    while QUOTES not in line:
        lines.append(line)
        line = read_line(CONTINUATION)
    return "\n".join([*lines, line.partition(QUOTES)[0]]).strip("\n")


@contextlib.contextmanager
def line_reader(history_file: Path) -> Iterator[ReadLine]:
    """Yields a reader of standard input. On a terminal it has editing, and a history in `history_file`."""
    if not sys.stdin.isatty():
        yield lambda prompt: input()
        return
    try:
        import readline
    except ImportError:  # some builds of Python have no readline: lines then cannot be edited
        yield input
        return
    with contextlib.suppress(OSError):
        readline.read_history_file(history_file)
    readline.set_history_length(_HISTORY_LINES)
    try:
        yield input
    finally:
        # If the file cannot be written (a read-only home), only the history is lost.
        with contextlib.suppress(OSError):
            history_file.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(history_file)
