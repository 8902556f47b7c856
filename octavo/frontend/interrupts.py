"""Ctrl-C while an engine runs: it takes effect between two steps, so that no step is left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupt(announce: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Hold back Ctrl-C. The callable that is yielded says whether one has come; call it between steps.

    `announce` is called when the first Ctrl-C comes. A second one is not held back: it raises
    KeyboardInterrupt wherever Python is. Python sees signals only while it runs itself. A step of the native
    backend is one call, so every Ctrl-C that comes during it counts as one when it returns. Python's own
    handler is put back at the end. Outside the main thread, and where the program has a handler of its own,
    nothing is held back.
    """
    interrupted = False

    def hold_back(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True
        announce()

    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, hold_back)
    try:
        yield lambda: interrupted
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
