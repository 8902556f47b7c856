"""How many processors this process may use: by its affinity, and by what its control groups allow."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from octavo.machine.memory import control_group_folders

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


def num_usable_processors() -> int:
    """Logical processors this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def processor_quota(proc: Path = _PROC, cgroup: Path = _CGROUP) -> float | None:
    """Processors' worth of time that this process's control groups allow; None = no limit."""
    return min(_quotas(proc, cgroup), default=None)


def default_num_threads(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """The number of threads that can run at the same time: the process's processors, rounded down, or 1."""
    quota = processor_quota(proc, cgroup)
    usable = num_usable_processors()
    return usable if quota is None else max(1, min(usable, int(quota)))


def _quotas(proc: Path, cgroup: Path) -> Iterator[float]:
    """The limits of the process's control group (version 2 or 1) and of those above it, in processors."""
    for folder, version in control_group_folders("cpu", proc, cgroup):
        files = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        try:
            limit = " ".join((folder / file).read_text() for file in files).split()
        except OSError:
            continue
        if len(limit) == 2 and limit[0].isdigit():  # "max" and "-1" are no limit
            yield int(limit[0]) / int(limit[1])
