"""The exceptions that Octavo raises on purpose.

All derive from `OctavoError`. Each also derives from the builtin that a Python user would expect, so that an
idiomatic `except ValueError` works. A message says what was given, what is allowed and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection


class OctavoError(Exception):
    """Base of every error that Octavo raises on purpose."""


class ConfigError(OctavoError, ValueError):
    """An engine setting, or a combination of settings, is not valid. Raised at start-up."""


class RequestError(OctavoError, ValueError):
    """A request is not valid (HTTP 400). `param` is the name of the wrong field, if it is a single field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnsupportedError(OctavoError, NotImplementedError):
    """A valid input needs something that is not supported. The message says what is supported."""


class WeightError(OctavoError, ValueError):
    """A model file is damaged, inconsistent or unknown. The message names file and key or tensor."""


class ModelNotFoundError(OctavoError, FileNotFoundError):
    """There is no model of this name or path. The message lists what could be meant."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class DownloadError(OctavoError, RuntimeError):
    """A model cannot be downloaded: network, permission or disk space is missing. The message says which."""


class CapacityError(OctavoError, MemoryError):
    """There is not enough memory. The message says what to change."""


class EventsLostError(OctavoError, LookupError):
    """KV events were lost and cannot be replayed. The message says how to begin again."""


class EngineDeadError(OctavoError, RuntimeError):
    """The engine failed and cannot recover. Make a new one."""


def suggest(name: str, known: Collection[str]) -> str:
    """Return the end of a message about an unknown `name`: the `known` names that resemble it, or all."""
    near = [each for each in known if name and each.startswith(name)]
    near = near or difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
