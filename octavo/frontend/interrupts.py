"""Ctrl-C while an engine runs: it takes effect between two steps, so that no step is left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupt(announce: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Hold back Ctrl-C. Yields a function that returns whether Ctrl-C was pressed; call it between steps.

    `announce` is called at the first Ctrl-C. A second one is not held back: it raises KeyboardInterrupt
    wherever the program is. Python handles signals only while it runs Python code, and a step of the native
    backend is one call into C++, so all Ctrl-C during a step count as one when the step returns. Python's
    own handler is restored at the end. Outside the main thread, and if the program has installed a handler
    of its own, nothing is held back.
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
