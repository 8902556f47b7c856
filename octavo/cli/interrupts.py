"""What Ctrl-C does while a model answers: it ends the answer, and never leaves a step half done."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from octavo.cli.program import INTERRUPTED


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Hold back Ctrl-C; the callable yielded says whether there was one, to be asked between steps.

    A second Ctrl-C ends the program at once: a step over a long prompt may be slow. The handling there was
    before is restored at the end.
    """
    interrupted = False

    def hold_back(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted:
            raise SystemExit(INTERRUPTED)
        interrupted = True

    previous = signal.getsignal(signal.SIGINT)
    if previous is not signal.SIG_IGN:  # as a shell leaves it for what runs in the background
        signal.signal(signal.SIGINT, hold_back)
    try:
        yield lambda: interrupted
    finally:
        signal.signal(signal.SIGINT, previous)
