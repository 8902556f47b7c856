"""Logging: the standard `logging` tree under "octavo", shown on stderr from the level in OCTAVO_LOG on."""

from __future__ import annotations

import logging
import os

from octavo.errors import ConfigError

_LEVELS = ("debug", "info", "warning", "error")


def get_logger(name: str) -> logging.Logger:
    """The logger of one module (`name` is its `__name__`)."""
    return logging.getLogger(name)


def set_up_logging() -> None:
    """Show the log on stderr from the level in OCTAVO_LOG on (default: warning). Not for libraries."""
    level = (os.environ.get("OCTAVO_LOG") or "warning").lower()
    if level not in _LEVELS:
        raise ConfigError(f"OCTAVO_LOG is {level!r}; it must be one of {', '.join(_LEVELS)}")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("octavo")
    logger.addHandler(handler)
    logger.setLevel(level.upper())
