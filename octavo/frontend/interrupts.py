"""What Ctrl-C does while an engine steps: it is answered between steps, so that none is left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupt(announce: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Hold back Ctrl-C; the callable yielded says whether there was one, to be asked between steps.

    `announce` is called when it comes. A second Ctrl-C is not held back, and raises KeyboardInterrupt in the
    midst of what Python runs. But Python notices either only where it runs itself, and not within a step of
    the native backend, which is one call: what comes meanwhile counts as one when that returns. Python's own
    handling is put back at the end, and is left alone outside the main thread and where the program has a
    handler of its own.
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
