"""Loads the extension module, and makes devices, whose instruction set it chooses."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from octavo.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from octavo.backends.native._native import Device

VARIABLE = "OCTAVO_NATIVE"


def load_library() -> Any:
    """The extension module. Raises UnsupportedError if it does not load, with the reason and what to do."""
    try:
        return importlib.import_module("octavo.backends.native._native")
    except ImportError as error:
        raise UnsupportedError(
            f"the native backend is not built here ({error}); install a C++17 compiler, then reinstall Octavo"
        ) from error


def usable_instruction_sets() -> list[str]:
    """The instruction sets that are compiled in and that this processor has, slowest first."""
    try:
        return list(load_library().usable_instruction_sets())
    except UnsupportedError:
        return []


def choose_instruction_set(usable: Sequence[str], forced: str | None) -> str:
    """`forced` (the value of OCTAVO_NATIVE) if it is set, else the last and fastest of `usable`.

    Raises ConfigError if `forced` is not usable, and UnsupportedError if no instruction set is.
    """
    if not usable:
        raise UnsupportedError(
            "this build of the native backend has no instruction set that this processor can run; reinstall "
            "Octavo on this machine"
        )
    if not forced:
        return usable[-1]
    if forced not in usable:
        raise ConfigError(f"{VARIABLE} is {forced!r:.40}; usable on this machine are {', '.join(usable)}")
    return forced


def make_device(num_threads: int) -> Device:
    """A device of `num_threads` threads, with the instruction set of OCTAVO_NATIVE or the fastest one.

    Raises UnsupportedError without the extension module, and ConfigError for an unusable OCTAVO_NATIVE or a
    number of threads that no device can have.
    """
    library = load_library()
    chosen = choose_instruction_set(library.usable_instruction_sets(), os.environ.get(VARIABLE))
    try:
        device: Device = library.Device(chosen, num_threads)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return device
