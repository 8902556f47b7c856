"""Every program in examples/ runs to its end on the tiny model, and prints something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_an_example_runs(program: Path, tiny_model: Path, tmp_path: Path) -> None:
    arguments = [str(tiny_model)]
    if program.stem == "kv_events":
        arguments += [f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replays"]
    done = subprocess.run(
        [sys.executable, "-W", "error", program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_list_of_examples_is_complete() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    assert [program.name for program in PROGRAMS if f"({program.name})" not in listed] == []
