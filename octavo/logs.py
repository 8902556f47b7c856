"""Logging: the standard `logging` tree under "octavo", shown on stderr from the level in OCTAVO_LOG on.

Importing changes nothing. A program sets logging up as it likes, before or after; where it has not, the
engine shows its log.
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
    """The logger of one module (`name` is its `__name__`)."""
    return logging.getLogger(name)


def set_up_logging(default_level: str = "warning") -> None:
    """Show the log on stderr, from the level in OCTAVO_LOG on, or from `default_level` if that is not set.
    Handlers and levels of the program's own go before.

    Called again it shows what is asked for in addition. Raises ConfigError for a level that there is not.
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
        return  # the program has set another since
    ours.shown_level = min(ours.shown_level, _LEVELS[level])
    logger.setLevel(ours.shown_level)


def ensure_logging(default_level: str) -> None:
    """`set_up_logging`, unless the program has set up logging itself: then all is left as it is."""
    logger = logging.getLogger("octavo")
    has_no_level = logger.level == logging.NOTSET
    if not _has_other_handlers(logger) and (has_no_level or _handler_of(logger) is not None):
        set_up_logging(default_level)


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to what is standard error at the time: notebooks and tests put something else in its place.

    Silent while the program has handlers of its own, so that no line is shown twice.
    """

    def __init__(self, shown_level: int) -> None:
        """`shown_level` is the logger's, until the program sets another."""
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        self.shown_level = shown_level

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Where the next line goes."""
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, if nobody else does."""
        if not _has_other_handlers(logging.getLogger("octavo")):
            super().emit(record)


def _handler_of(logger: logging.Logger) -> _StandardError | None:
    return next((handler for handler in logger.handlers if isinstance(handler, _StandardError)), None)


def _has_other_handlers(logger: logging.Logger) -> bool:
    handlers = [*logger.handlers, *(logging.getLogger().handlers if logger.propagate else ())]
    return any(not isinstance(handler, _StandardError) for handler in handlers)
