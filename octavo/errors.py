"""The exceptions Octavo raises on purpose.

One family under `OctavoError`; each member also inherits the builtin a Python user would expect, so that an
idiomatic `except ValueError` works. A message says what was given, what is allowed and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection


class OctavoError(Exception):
    """Base of every error that Octavo raises on purpose."""


class ConfigError(OctavoError, ValueError):
    """An engine setting, or a combination of settings, that cannot work. Raised at the start."""


class RequestError(OctavoError, ValueError):
    """A request that is wrong in itself (HTTP 400). `param` names the offending field, where there is one."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnsupportedError(OctavoError, NotImplementedError):
    """Something well formed that this build, backend or model does not offer. The message says what is."""


class WeightError(OctavoError, ValueError):
    """A model file that is damaged, inconsistent or unknown. The message names file and key or tensor."""


class ModelNotFoundError(OctavoError, FileNotFoundError):
    """A model name or path that leads nowhere. The message lists what could be meant."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class DownloadError(OctavoError, RuntimeError):
    """A model that cannot be fetched, for want of network, permission or space. The message says which."""


class CapacityError(OctavoError, MemoryError):
    """Memory that is not there. The message names both sizes and the largest setting that fits."""


class EventsLostError(OctavoError, LookupError):
    """Events of the KV cache that no replay brings back. The message says what to start again from."""


class EngineDeadError(OctavoError, RuntimeError):
    """The engine failed in a way it cannot recover from; a new one must be made."""


def suggest(name: str, known: Collection[str]) -> str:
    """The end of a message about a `name` that is not among those `known`: which may have been meant."""
    near = [each for each in known if name and each.startswith(name)]
    near = near or difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
