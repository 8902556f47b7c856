"""Loads the extension module, and chooses the instruction set of the device that runs its kernels."""

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
    """The extension module. Raises UnsupportedError, saying why and what to do, where it does not load."""
    try:
        return importlib.import_module("octavo.backends.native._native")
    except ImportError as error:
        raise UnsupportedError(
            f"the native backend is not built here ({error}); install a C++17 compiler, then Octavo again"
        ) from error


def usable_instruction_sets() -> list[str]:
    """The instruction sets that are compiled in and that this processor has, slowest first."""
    try:
        return list(load_library().usable_instruction_sets())
    except UnsupportedError:
        return []


def choose_instruction_set(usable: Sequence[str], forced: str | None) -> str:
    """`forced` (the value of OCTAVO_NATIVE), else the fastest.

    Raises ConfigError for one not usable, UnsupportedError where none is.
    """
    if not usable:
        raise UnsupportedError(
            "this build of the native backend has no instruction set that this processor can run; install "
            "Octavo anew, on this machine"
        )
    if not forced:
        return usable[-1]
    if forced not in usable:
        raise ConfigError(f"{VARIABLE} is {forced!r:.40}; usable on this machine are {', '.join(usable)}")
    return forced


def make_device(num_threads: int) -> Device:
    """A device of `num_threads` threads, on the fastest instruction set or on that of OCTAVO_NATIVE.

    Raises UnsupportedError without the extension module, ConfigError for an unusable OCTAVO_NATIVE or a
    number of threads that no device takes.
    """
    library = load_library()
    chosen = choose_instruction_set(library.usable_instruction_sets(), os.environ.get(VARIABLE))
    try:
        device: Device = library.Device(chosen, num_threads)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return device
