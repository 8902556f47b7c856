"""What a person types in a chat: lines, with editing and a history that is kept, joined to messages."""

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
    """One message. A backslash at a line's end and three quotes around lines join them.

    Raises EOFError at the end of input, UnfinishedMessageError where that comes within a message.
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
    """Lines from standard input; at a terminal with editing, and with the history kept in `history_file`."""
    if not sys.stdin.isatty():
        yield lambda prompt: input()
        return
    try:
        import readline
    except ImportError:  # some builds of Python have none: lines then come without editing
        yield input
        return
    with contextlib.suppress(OSError):
        readline.read_history_file(history_file)
    readline.set_history_length(_HISTORY_LINES)
    try:
        yield input
    finally:
        # Whoever cannot write there (a read-only home) can still chat.
        with contextlib.suppress(OSError):
            history_file.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(history_file)
