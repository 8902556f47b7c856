"""Instruction sets, devices and the thread pool: what csrc/platform does for the rest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.backends.native.library import load_library, usable_instruction_sets
from octavo.errors import UnsupportedError

HERE = Path(__file__).parent
NAMES = ["portable", "avx2", "avx512", "avx512_bf16", "amx"]


@pytest.fixture
def library() -> Any:
    try:
        return load_library()
    except UnsupportedError as error:
        pytest.skip(str(error))


def test_usable_instruction_sets_are_known_ones_slowest_first() -> None:
    usable = usable_instruction_sets()
    assert usable == [name for name in NAMES if name in usable]


def test_a_device_says_what_it_was_made_of(library: Any) -> None:
    for name in library.usable_instruction_sets():
        device = library.Device(name, num_threads=2)
        assert (device.instruction_set, device.num_threads) == (name, 2)


@pytest.mark.parametrize("num_threads", [0, -1, 1025])
def test_a_number_of_threads_out_of_range_is_refused(library: Any, num_threads: int) -> None:
    with pytest.raises(ValueError, match=f"from 1 to 1024, not {num_threads}"):
        library.Device(library.usable_instruction_sets()[0], num_threads)


def test_an_unknown_instruction_set_is_refused_by_name(library: Any) -> None:
    with pytest.raises(ValueError, match=f"'sse5' is none of {', '.join(NAMES)}"):
        library.Device("sse5", 1)


def test_an_instruction_set_that_this_machine_lacks_is_refused(library: Any) -> None:
    usable = library.usable_instruction_sets()
    lacking = [name for name in NAMES if name not in usable]
    if not lacking:
        pytest.skip("this machine can run all of them")
    with pytest.raises(RuntimeError, match=f"no {lacking[0]}; it can run {', '.join(usable)}"):
        library.Device(lacking[0], 1)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_the_caller_may_run_where_it_could_before(device: Any) -> None:
    before = os.sched_getaffinity(0)
    device.barrier_ns()
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_device_takes_its_threads_with_it(library: Any) -> None:
    before = len(os.listdir("/proc/self/task"))
    device = library.Device(library.usable_instruction_sets()[0], 5)
    assert len(os.listdir("/proc/self/task")) == before + 4
    del device
    assert len(os.listdir("/proc/self/task")) == before


@pytest.fixture(scope="module")
def pool_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler: set CXX")
    csrc = HERE.parents[2] / "csrc"
    program = tmp_path_factory.mktemp("pool") / "thread_pool_test"
    sources = [*(csrc / "platform").glob("*.cpp"), HERE / "thread_pool_test.cpp"]
    subprocess.run(
        [
            compiler,
            "-std=c++17",
            "-O1",
            "-pthread",
            f"-I{csrc}",
            "-DOCTAVO_HAS_portable",
            "-o",
            program,
            *sources,
        ],
        check=True,
    )
    return program


@pytest.mark.parametrize("num_threads", [1, 2, 3, 7, 8])
def test_jobs_run_once_on_each_thread_and_barriers_order_memory(pool_program: Path, num_threads: int) -> None:
    finished = subprocess.run(
        [pool_program, str(num_threads)], stderr=subprocess.PIPE, text=True, check=False, timeout=60
    )
    assert (finished.returncode, finished.stderr) == (0, "")
