from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.table import Table

from octavo.bench import scheduler
from octavo.bench.scheduler import SchedulerCase, SchedulerCost
from tests.scripted_program import Octavo

CASES = (SchedulerCase(num_running=1), SchedulerCase(num_running=4, num_waiting=7))
JSON = [
    {
        "case": {"num_running": 1, "num_waiting": 0, "position": 100, "num_windows": 0},
        "schedule_us": 12.0,
        "update_us": 8.0,
        "step_us": 20.0,
        "us_per_request": 20.0,
    },
    {
        "case": {"num_running": 4, "num_waiting": 7, "position": 100, "num_windows": 0},
        "schedule_us": 12.0,
        "update_us": 8.0,
        "step_us": 20.0,
        "us_per_request": 5.0,
    },
]


@pytest.fixture(autouse=True)
def known_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "STANDARD_CASES", CASES)
    monkeypatch.setattr(scheduler, "measure", lambda case: SchedulerCost(case, 12.0, 8.0, 20.0))


def test_the_costs_of_every_case_are_a_table(octavo: Octavo) -> None:
    result = octavo("bench", "scheduler")
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines() if "20.0" in line or "5.0" in line]
    assert [row[-2] for row in rows] == ["20.0", "5.0"]


def test_a_table_away_from_a_terminal_is_as_wide_as_its_text(
    octavo: Octavo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def render(costs: Sequence[SchedulerCost]) -> Table:
        table = Table()
        table.add_row("left " * 40, "right")
        return table

    monkeypatch.setattr(scheduler, "render", render)
    lines = octavo("bench", "scheduler").stdout.splitlines()
    assert any("left " * 40 in line and "right" in line for line in lines)
    assert max(map(len, lines)) < 250


def test_json_on_standard_output_stands_in_place_of_the_table(octavo: Octavo) -> None:
    assert json.loads(octavo("bench", "scheduler", "--json", "-").stdout) == JSON


def test_json_in_a_file_goes_with_the_table(octavo: Octavo, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    assert "per request" in octavo("bench", "scheduler", "--json", str(path)).stdout
    assert json.loads(path.read_text()) == JSON


def test_a_file_that_cannot_be_written_is_found_out_before_measuring(
    octavo: Octavo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(case: SchedulerCase) -> SchedulerCost:
        pytest.fail(f"measured {case}")

    monkeypatch.setattr(scheduler, "measure", refuse)
    path = tmp_path / "no folder" / "costs.json"
    result = octavo("bench", "scheduler", "--json", str(path))
    assert result.exit_code == 1
    assert result.stderr == f"octavo: error: {path}: No such file or directory\n"
