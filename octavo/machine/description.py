"""Describes this machine: its processor, its memory, and how much of both a process may use.

The facts come from /proc and the control groups on Linux, and from sysctl on macOS.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from octavo.machine.memory import available_memory_bytes, free_memory_bytes, total_memory_bytes
from octavo.machine.processors import num_usable_processors, processor_quota

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")

# Instruction sets that kernels for language models use → their names, in lower case, in /proc/cpuinfo (Linux)
# and sysctl (macOS).
INSTRUCTION_SETS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "AVX2": frozenset({"avx2"}),
        "AVX-512": frozenset({"avx512f"}),
        "AVX-512 BF16": frozenset({"avx512_bf16"}),
        "VNNI": frozenset({"avx512_vnni", "avx_vnni", "avx512vnni"}),
        "AMX": frozenset({"amx_tile"}),
        "NEON": frozenset({"asimd", "neon", "hw.optional.neon"}),
        "DotProd": frozenset({"asimddp", "hw.optional.arm.feat_dotprod"}),
        "BF16": frozenset({"bf16", "hw.optional.arm.feat_bf16"}),
        "I8MM": frozenset({"i8mm", "hw.optional.arm.feat_i8mm"}),
        "SVE": frozenset({"sve"}),
    }
)


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine as a process sees it."""

    system: str
    cpu_model: str
    instruction_sets: tuple[str, ...]
    num_cpus: int  # logical processors of the machine
    num_usable_cpus: int  # logical processors this process may run on
    cpu_quota: float | None  # processors' worth of time its control groups allow; None = no limit
    memory_bytes: int
    available_memory_bytes: int  # without the limits of control groups
    free_memory_bytes: int  # what this process can still get

    @property
    def num_effective_cpus(self) -> float:
        """Processors' worth of time this process can get."""
        return self.num_usable_cpus if self.cpu_quota is None else min(self.num_usable_cpus, self.cpu_quota)


def read_machine(proc: Path = PROC, cgroup: Path = CGROUP) -> Machine:
    """This machine, or the one that the folders `proc` and `cgroup` describe."""
    cpu_model, names = (
        parse_sysctl(_sysctl()) if sys.platform == "darwin" else parse_cpuinfo(_read(proc / "cpuinfo"))
    )
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu_model=cpu_model or platform.processor() or "unknown",
        instruction_sets=tuple(shown for shown, known in INSTRUCTION_SETS.items() if known & names),
        num_cpus=os.cpu_count() or 1,
        num_usable_cpus=num_usable_processors(),
        cpu_quota=processor_quota(proc, cgroup),
        memory_bytes=total_memory_bytes(proc),
        available_memory_bytes=available_memory_bytes(proc),
        free_memory_bytes=free_memory_bytes(proc, cgroup),
    )


def parse_cpuinfo(text: str) -> tuple[str, frozenset[str]]:
    """The model ("" if it is not given, as on Arm) and the feature names in a /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), value.strip())  # the first processor's
    features = f"{fields.get('flags', '')} {fields.get('features', '')}"
    return fields.get("model name", ""), frozenset(features.lower().split())


def parse_sysctl(text: str) -> tuple[str, frozenset[str]]:
    """The model and the feature names in the output of `sysctl machdep.cpu hw.optional`."""
    fields = dict(line.partition(": ")[::2] for line in text.splitlines())
    features = {
        name.lower() for name, value in fields.items() if name.startswith("hw.optional.") and value == "1"
    }
    for name in ("machdep.cpu.features", "machdep.cpu.leaf7_features"):
        features |= set(fields.get(name, "").lower().split())
    return fields.get("machdep.cpu.brand_string", ""), frozenset(features)


def _sysctl() -> str:
    command = ["sysctl", "machdep.cpu", "hw.optional"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _read(path: Path) -> str:
    """The text of a file; "" if it does not exist."""
    try:
        return path.read_text()
    except OSError:
        return ""
