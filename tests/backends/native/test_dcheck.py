"""Checks inside one allocation, where a sanitizer sees nothing: compiled in, they end the process."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parents[2] / "csrc"
COMPILER = shutil.which(os.environ.get("CXX", "c++"))


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILER is None:
        pytest.skip("no C++ compiler: set CXX")
    program = tmp_path_factory.mktemp("dcheck") / "checked"
    command = [COMPILER, "-std=c++17", f"-I{SOURCES}", "-DOCTAVO_ISA=portable", "-DOCTAVO_DCHECKS"]
    sources = [HERE / "dcheck_test.cpp", SOURCES / "platform" / "dcheck.cpp"]
    subprocess.run([*command, f"-o{program}", *sources], check=True)
    return program


@pytest.mark.parametrize("case", ["scratch-fits", "counting", "row"])
def test_what_fits_passes(checked: Path, case: str) -> None:
    ended = subprocess.run([checked, case], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "done\n")


@pytest.mark.parametrize(
    ("case", "condition"),
    [
        ("scratch-overflows", "used_ <= num_bytes_"),
        ("row-past-the-step", "t < num_tokens"),
        ("row-past-the-buffer", "view.column + view.num_columns <= buffer.stride"),
        ("no-such-buffer", "view.buffer < static_cast<int>(buffers.size())"),
    ],
)
def test_what_does_not_fit_ends_the_process_and_says_where(checked: Path, case: str, condition: str) -> None:
    ended = subprocess.run([checked, case], capture_output=True, text=True, check=False)
    assert ended.returncode < 0
    assert condition in ended.stderr
    assert ended.stdout == ""
