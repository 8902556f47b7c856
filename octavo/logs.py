"""Logging: Python's `logging` under the name "octavo", written to standard error.

OCTAVO_LOG sets the lowest level that is written. Importing this module changes nothing. A program that sets
up `logging` itself, before or after the engine starts, takes precedence: the engine then writes nothing.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

from octavo.errors import ConfigError

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def get_logger(name: str) -> logging.Logger:
    """Return the logger of the module whose `__name__` is `name`."""
    return logging.getLogger(name)


def set_up_logging(default_level: str = "warning") -> None:
    """Write records to standard error, from the level in OCTAVO_LOG up, or from `default_level` if that
    variable is not set. Handlers and levels that the program set take precedence.

    A second call can only lower the level. Raises ConfigError for an unknown level.
    """
    level = (os.environ.get("OCTAVO_LOG") or default_level).lower()
    if level not in _LEVELS:
        raise ConfigError(f"OCTAVO_LOG is {level!r}; it must be one of {', '.join(_LEVELS)}")
    logger = logging.getLogger("octavo")
    ours = _handler_of(logger)
    if ours is None:
        ours = _StandardError(_LEVELS[level])
        logger.addHandler(ours)
    elif logger.level != ours.shown_level:
        return  # the program has set another level since
    ours.shown_level = min(ours.shown_level, _LEVELS[level])
    logger.setLevel(ours.shown_level)


def ensure_logging(default_level: str) -> None:
    """Call `set_up_logging`, unless the program has set up logging itself."""
    logger = logging.getLogger("octavo")
    has_no_level = logger.level == logging.NOTSET
    if not _has_other_handlers(logger) and (has_no_level or _handler_of(logger) is not None):
        set_up_logging(default_level)


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, which notebooks and tests replace.

    It writes nothing while the program has handlers of its own, so that no line appears twice.
    """

    def __init__(self, shown_level: int) -> None:
        """`shown_level` is the level that Octavo gave the logger."""
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        self.shown_level = shown_level

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """The current `sys.stderr`, to which the next line is written."""
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, unless the program has handlers of its own."""
        if not _has_other_handlers(logging.getLogger("octavo")):
            super().emit(record)


def _handler_of(logger: logging.Logger) -> _StandardError | None:
    return next((handler for handler in logger.handlers if isinstance(handler, _StandardError)), None)


def _has_other_handlers(logger: logging.Logger) -> bool:
    handlers = [*logger.handlers, *(logging.getLogger().handlers if logger.propagate else ())]
    return any(not isinstance(handler, _StandardError) for handler in handlers)
