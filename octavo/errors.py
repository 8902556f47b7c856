"""The exceptions that Octavo raises on purpose.

Each is a subclass of `OctavoError` and of the builtin exception that Python users expect, so that `except
ValueError` works. A message says what was given, what is allowed and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection


class OctavoError(Exception):
    """Base of every error that Octavo raises on purpose."""


class ConfigError(OctavoError, ValueError):
    """A setting, or a combination of settings, that cannot work. Raised at start-up."""


class RequestError(OctavoError, ValueError):
    """An invalid request (HTTP 400). `param` names the wrong field, if there is one."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnsupportedError(OctavoError, NotImplementedError):
    """A valid use that this build, backend or model does not support. The message says what is supported."""


class WeightError(OctavoError, ValueError):
    """A model file that is damaged, inconsistent or unknown. The message names file and key or tensor."""


class ModelNotFoundError(OctavoError, FileNotFoundError):
    """A model name or path that does not exist. The message lists names that may have been meant."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class DownloadError(OctavoError, RuntimeError):
    """A model cannot be downloaded. The message says if network, permission or disk space is missing."""


class CapacityError(OctavoError, MemoryError):
    """Not enough memory. The message names both sizes and the largest setting that fits."""


class EventsLostError(OctavoError, LookupError):
    """KV events were lost and cannot be replayed. The message says where to start again."""


class EngineDeadError(OctavoError, RuntimeError):
    """The engine has failed and cannot recover. A new engine must be made."""


def suggest(name: str, known: Collection[str]) -> str:
    """Return the end of an error message about an unknown `name`: the `known` names that may be meant."""
    near = [each for each in known if name and each.startswith(name)]
    near = near or difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
