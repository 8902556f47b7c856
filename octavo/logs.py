"""Logging: the standard `logging` tree under "octavo", shown on stderr from the level in OCTAVO_LOG on.

Importing changes nothing. A program sets logging up as it likes; where it has not, the engine shows its log.
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

    Called again it shows what is asked for in addition. Raises ConfigError for a level that there is not.
    """
    level = (os.environ.get("OCTAVO_LOG") or default_level).lower()
    if level not in _LEVELS:
        raise ConfigError(f"OCTAVO_LOG is {level!r}; it must be one of {', '.join(_LEVELS)}")
    logger = logging.getLogger("octavo")
    if _is_set_up(logger):
        logger.setLevel(min(logger.level, _LEVELS[level]))
        return
    handler = _StandardError()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(_LEVELS[level])


def ensure_logging(default_level: str) -> None:
    """`set_up_logging`, unless the program has set up logging itself: then all is left as it is."""
    logger = logging.getLogger("octavo")
    if _is_set_up(logger) or not logger.hasHandlers():
        set_up_logging(default_level)


def _is_set_up(logger: logging.Logger) -> bool:
    return any(isinstance(handler, _StandardError) for handler in logger.handlers)


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to what is standard error at the time: notebooks and tests put something else in its place."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Where the next line goes."""
        return sys.stderr
