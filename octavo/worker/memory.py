"""How much memory the KV cache may take.

    cache bytes = kv_cache_memory, or memory_utilization * free memory

where free memory is measured after the weights are loaded, and is the least of what the machine has available
and what the process's control groups still allow.
"""

from __future__ import annotations

import os
from pathlib import Path

from octavo.config import CacheConfig
from octavo.errors import CapacityError

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


def kv_cache_bytes(config: CacheConfig) -> int:
    """Bytes the KV cache may take. Raises CapacityError when more is asked for than is free."""
    free = free_memory_bytes()
    if config.kv_cache_memory is None:
        return int(free * config.memory_utilization)
    assert isinstance(config.kv_cache_memory, int)
    if config.kv_cache_memory > free:
        raise CapacityError(
            f"kv_cache_memory is {config.kv_cache_memory / 2**20:.0f} MiB, and only "
            f"{free / 2**20:.0f} MiB of memory are free"
        )
    return config.kv_cache_memory


def free_memory_bytes(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Bytes this process can still get without swapping, on this machine and in its control group."""
    return min([_machine_available(proc), *_cgroup_headrooms(proc, cgroup)])


def _machine_available(proc: Path) -> int:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    # No /proc (macOS): half of what is installed is a cautious guess at what is available.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _cgroup_headrooms(proc: Path, cgroup: Path) -> list[int]:
    """Bytes left in the process's control group and in each above it, for those with a limit."""
    headrooms = []
    for folder, limit_name, usage_name in _cgroup_folders(proc, cgroup):
        try:
            limit = (folder / limit_name).read_text().strip()
            used = int((folder / usage_name).read_text())
            reclaimable = _inactive_file_bytes(folder / "memory.stat")
        except (OSError, ValueError):
            continue
        if limit.isdigit():  # "max" = no limit
            headrooms.append(max(int(limit) - (used - reclaimable), 0))
    return headrooms


def _cgroup_folders(proc: Path, cgroup: Path) -> list[tuple[Path, str, str]]:
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = cgroup, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = cgroup / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        own = root / path.lstrip("/")
        above = [parent for parent in own.parents if parent == root or root in parent.parents]
        folders += [(folder, *names) for folder in (own, *above)]
    return folders


def _inactive_file_bytes(stat: Path) -> int:
    """Page cache that counts as used, but that the kernel gives back when memory is wanted."""
    try:
        pages = dict(line.split(maxsplit=1) for line in stat.read_text().splitlines())
    except OSError:
        return 0
    # Version 1 has a sum over the groups below too, as its usage has; in version 2 every number is one.
    return int(pages.get("total_inactive_file", pages.get("inactive_file", 0)))
