"""Computes how much memory the KV cache may take.

    cache bytes = kv_cache_memory, or memory_utilization * free memory

Free memory is measured after the weights are loaded. It is the smallest of the machine's available memory and
the memory that each of the process's control groups still allows.
"""

from __future__ import annotations

import os
from pathlib import Path

from octavo.config import CacheConfig
from octavo.errors import CapacityError

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")

# The files of a control group, by version.
_LIMIT_AND_USAGE = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    2: ("memory.max", "memory.current"),
}


def kv_cache_bytes(config: CacheConfig) -> int:
    """Bytes that the KV cache may take. Raises CapacityError if `kv_cache_memory` is more than is free."""
    free = free_memory_bytes()
    if config.kv_cache_memory is None:
        return int(free * config.memory_utilization)
    assert isinstance(config.kv_cache_memory, int)
    if config.kv_cache_memory > free:
        raise CapacityError(
            f"kv_cache_memory is {config.kv_cache_memory / 2**20:.0f} MiB, and only "
            f"{free / 2**20:.0f} MiB of memory are free; lower it"
        )
    return config.kv_cache_memory


def free_memory_bytes(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Bytes this process can still get without swapping, on this machine and in its control group."""
    return min([available_memory_bytes(proc), *_cgroup_headrooms(proc, cgroup)])


def available_memory_bytes(proc: Path = _PROC) -> int:
    """Bytes this machine can still give to all of its processes without swapping."""
    available = _meminfo_bytes(proc, "MemAvailable")
    # Without /proc (macOS), half of the installed memory is a cautious guess.
    return total_memory_bytes(proc) // 2 if available is None else available


def total_memory_bytes(proc: Path = _PROC) -> int:
    """Bytes of memory this machine has."""
    total = _meminfo_bytes(proc, "MemTotal")
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if total is None else total


def control_group_folders(
    controller: str, proc: Path = _PROC, cgroup: Path = _CGROUP
) -> list[tuple[Path, int]]:
    """The folders of the control groups that `controller` limits this process by, and the version of each.

    The process's own group comes first, then those above it.
    """
    folders = []
    for line in _lines(proc / "self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, version = cgroup, 2
        elif controller in controllers.split(","):
            root, version = cgroup / controller, 1
        else:
            continue
        own = root / path.lstrip("/")
        above = [parent for parent in own.parents if parent == root or root in parent.parents]
        folders += [(folder, version) for folder in (own, *above)]
    return folders


def _meminfo_bytes(proc: Path, name: str) -> int | None:
    for line in _lines(proc / "meminfo"):
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def _lines(path: Path) -> list[str]:
    """The lines of a file; none if it does not exist."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _cgroup_headrooms(proc: Path, cgroup: Path) -> list[int]:
    """Bytes left in the process's control group and in each above it, for those with a limit."""
    headrooms = []
    for folder, version in control_group_folders("memory", proc, cgroup):
        limit_name, usage_name = _LIMIT_AND_USAGE[version]
        try:
            limit = (folder / limit_name).read_text().strip()
            used = int((folder / usage_name).read_text())
            reclaimable = _inactive_file_bytes(folder / "memory.stat")
        except (OSError, ValueError):
            continue
        if limit.isdigit():  # "max" = no limit
            headrooms.append(max(int(limit) - (used - reclaimable), 0))
    return headrooms


def _inactive_file_bytes(stat: Path) -> int:
    """Bytes of page cache that count as used, but that the kernel frees when a process needs memory."""
    try:
        pages = dict(line.split(maxsplit=1) for line in stat.read_text().splitlines())
    except OSError:
        return 0
    # Usage includes the groups below. In version 1 only the total_ numbers do, in version 2 all numbers.
    return int(pages.get("total_inactive_file", pages.get("inactive_file", 0)))
