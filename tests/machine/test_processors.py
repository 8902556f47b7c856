"""How many threads a process gets by default, by made-up /proc and control-group trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.machine import processors
from octavo.machine.processors import default_num_threads, processor_quota


@pytest.fixture
def limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this process's control group, on a machine that lets it run on four processors."""
    monkeypatch.setattr(processors, "num_usable_processors", lambda: 4)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/app\n")
    folder = tmp_path / "cgroup/app"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("limit", "num_threads"),
    [("max 100000", 4), ("250000 100000", 2), ("50000 100000", 1), ("900000 100000", 4)],
)
def test_threads_are_the_processors_that_affinity_and_quota_leave(
    tmp_path: Path, limited: Path, limit: str, num_threads: int
) -> None:
    (limited / "cpu.max").write_text(limit)
    assert default_num_threads(tmp_path / "proc", tmp_path / "cgroup") == num_threads


def test_without_control_groups_affinity_decides(tmp_path: Path, limited: Path) -> None:
    assert processor_quota(tmp_path / "none", tmp_path / "none") is None
    assert default_num_threads(tmp_path / "none", tmp_path / "none") == 4
