"""How much memory is free, by made-up /proc and control-group trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.config import CacheConfig
from octavo.errors import CapacityError
from octavo.machine import memory
from octavo.machine.memory import free_memory_bytes, kv_cache_bytes

MIB = 2**20


class Machine:
    """A fake /proc and /sys/fs/cgroup."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.cgroup = folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroup.mkdir()

    def has(self, available_mib: int) -> None:
        available = f"MemAvailable:   {available_mib * 1024} kB"
        text = f"MemTotal: 99999999 kB\nMemFree: 1 kB\n{available}\nBuffers: 5 kB\n"
        (self.proc / "meminfo").write_text(text)

    def puts_us_in(self, *lines: str) -> None:
        (self.proc / "self/cgroup").write_text("".join(line + "\n" for line in lines))

    def group_v2(self, path: str, limit: int | str, used: int, inactive_file: int = 0) -> None:
        """Limits of one control group, in MiB."""
        self._write(path, "memory.max", limit * MIB if isinstance(limit, int) else limit)
        self._write(path, "memory.current", used * MIB)
        self._write(
            path, "memory.stat", f"anon 1\nfile 2\ninactive_file {inactive_file * MIB}\nactive_file 3"
        )

    def group_v1(self, path: str, limit: int, used: int, inactive_file: int = 0, below: int = 0) -> None:
        """The same in version 1; `below` more MiB of inactive file pages are in groups below this one."""
        self._write(path, "memory.limit_in_bytes", limit * MIB)
        self._write(path, "memory.usage_in_bytes", used * MIB)
        total = (inactive_file + below) * MIB
        self._write(
            path, "memory.stat", f"cache 1\ninactive_file {inactive_file * MIB}\ntotal_inactive_file {total}"
        )

    def free_mib(self) -> float:
        return free_memory_bytes(self.proc, self.cgroup) / MIB

    def _write(self, path: str, name: str, value: object) -> None:
        folder = self.cgroup / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{value}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.has(8000)
    return machine


def test_without_control_groups_the_machine_decides(machine: Machine) -> None:
    assert machine.free_mib() == 8000


def test_a_group_leaves_its_limit_less_what_is_used(machine: Machine) -> None:
    machine.puts_us_in("0::/app")
    machine.group_v2("app", limit=1000, used=300)
    assert machine.free_mib() == 700


def test_page_cache_that_can_be_dropped_counts_as_free(machine: Machine) -> None:
    machine.puts_us_in("0::/app")
    machine.group_v2("app", limit=1000, used=900, inactive_file=500)
    assert machine.free_mib() == 600


def test_a_group_above_may_be_the_tighter_one(machine: Machine) -> None:
    machine.puts_us_in("0::/slice/app/worker")
    machine.group_v2("slice", limit=2000, used=1900)
    machine.group_v2("slice/app", limit="max", used=10)
    machine.group_v2("slice/app/worker", limit=1000, used=10)
    assert machine.free_mib() == 100


def test_a_container_sees_its_own_group_as_the_root(machine: Machine) -> None:
    machine.puts_us_in("0::/")
    machine.group_v2(".", limit=500, used=100)
    assert machine.free_mib() == 400


def test_a_group_without_limit_and_one_larger_than_the_machine_change_nothing(machine: Machine) -> None:
    machine.puts_us_in("0::/a/b")
    machine.group_v2("a", limit="max", used=1)
    machine.group_v2("a/b", limit=90_000, used=1)
    assert machine.free_mib() == 8000


def test_a_group_that_uses_more_than_its_limit_leaves_nothing(machine: Machine) -> None:
    machine.puts_us_in("0::/app")
    machine.group_v2("app", limit=100, used=150)
    assert machine.free_mib() == 0


def test_version_1_groups_are_read_from_the_memory_controller(machine: Machine) -> None:
    machine.puts_us_in("5:cpu,cpuacct:/elsewhere", "4:memory:/docker/abc", "1:name=systemd:/x")
    machine.group_v1("memory/docker/abc", limit=1000, used=600, inactive_file=100)
    assert machine.free_mib() == 500


def test_version_1_counts_page_cache_of_the_groups_below_as_it_counts_their_usage(machine: Machine) -> None:
    machine.puts_us_in("4:memory:/docker")
    machine.group_v1("memory/docker", limit=1000, used=600, inactive_file=100, below=200)
    assert machine.free_mib() == 700


def test_a_version_1_container_sees_its_own_group_as_the_root(machine: Machine) -> None:
    machine.puts_us_in("4:memory:/docker/abc")
    machine.group_v1("memory", limit=1000, used=100)
    assert machine.free_mib() == 900


def test_version_1_says_no_limit_with_a_huge_number(machine: Machine) -> None:
    machine.puts_us_in("4:memory:/")
    machine.group_v1("memory", limit=2**63 // MIB - 1, used=100)
    assert machine.free_mib() == 8000


@pytest.mark.parametrize("line", ["0::/gone", "0::/../sibling", "4:memory:/gone", "4:cpu:/app"])
def test_groups_that_cannot_be_read_change_nothing(machine: Machine, line: str) -> None:
    machine.puts_us_in(line)
    assert machine.free_mib() == 8000


def test_a_system_without_proc_has_some_memory(tmp_path: Path) -> None:
    free = free_memory_bytes(tmp_path / "no proc", tmp_path / "no cgroup")
    assert 0 < free < 2**50


# ------------------------------------------------------------------------------------------ the cache's share


@pytest.fixture
def free_mib(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(memory, "free_memory_bytes", lambda: 1000 * MIB)
    return 1000


def test_the_cache_takes_a_share_of_what_is_free(free_mib: int) -> None:
    assert kv_cache_bytes(CacheConfig(memory_utilization=0.25)) == 250 * MIB


def test_a_given_size_is_taken_as_it_is(free_mib: int) -> None:
    assert kv_cache_bytes(CacheConfig(kv_cache_memory=1000 * MIB, memory_utilization=0.25)) == 1000 * MIB


def test_a_size_that_is_not_free_is_an_error_with_both_numbers_and_what_to_do(free_mib: int) -> None:
    with pytest.raises(CapacityError, match=r"kv_cache_memory is 1001 MiB.*only 1000 MiB.*; lower it"):
        kv_cache_bytes(CacheConfig(kv_cache_memory=1001 * MIB))
