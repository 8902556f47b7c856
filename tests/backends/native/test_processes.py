"""Steps that are running when something happens to their process: other threads, a fork, the end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from octavo.backends.native.library import make_device, usable_instruction_sets
from octavo.backends.native.program import Program, compile_program
from octavo.ops import Linear
from tests.models.tiny_llama import make_weight

SIZE = 32
NUM_TOKENS = 1000
EXIT_STATUS = 7
HANGS_AFTER_S = 30
KEPT: list[object] = []  # until the interpreter takes this module apart


def tokens(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((NUM_TOKENS, SIZE), dtype=np.float32)


def doubling(device: Any) -> Program:
    """x [T, 32] → 2 x."""
    layer = Linear((make_weight(2 * np.eye(SIZE, dtype=np.float32)),))
    return compile_program(device, lambda ops, token_ids, positions, x: ops.linear(x, layer), {"x": SIZE})


def step_is_right(program: Program, x: np.ndarray) -> bool:
    return np.array_equal(program.run(len(x), x=x)[0], 2 * x)


def test_threads_may_share_programs_and_their_engine(device: Any) -> None:
    programs = [doubling(device), doubling(device)]
    right: list[bool] = []

    def run_steps(index: int) -> None:
        program, x = programs[index % 2], tokens(index)
        right.append(all(step_is_right(program, x) for _ in range(30)))

    threads = [threading.Thread(target=run_steps, args=(index,), daemon=True) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS_AFTER_S)
    assert right == [True] * 4


def status_of_fork(job: Callable[[], bool]) -> int:
    """What a forked process ends with: 0 if `job` is true in it, else 1, or a signal's if it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads: it is what is tested
        child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(HANGS_AFTER_S)
            os._exit(0 if job() else 1)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_process_that_is_forked_during_a_step_runs_steps(device: Any) -> None:
    program, x = doubling(device), tokens()
    enough = threading.Event()

    def run_steps() -> None:
        while not enough.is_set():
            program.run(NUM_TOKENS, x=x)

    thread = threading.Thread(target=run_steps)
    thread.start()
    try:
        for _ in range(5):  # the thread lets this one run only while it is in a step
            assert status_of_fork(lambda: step_is_right(program, x)) == 0
    finally:
        enough.set()
        thread.join()
    assert step_is_right(program, x)


class LastStep:
    """Runs a step when it is destroyed."""

    def __init__(self, program: Program, x: np.ndarray) -> None:
        self._run = lambda: program.run(len(x), x=x)

    def __del__(self) -> None:
        self._run()


def end_during_a_step() -> None:
    """Ends the process while a daemon thread runs steps.

    One more step, as the interpreter finalizes, leaves the thread time and lock to come out of its own.
    """
    program, x = doubling(make_device(2)), tokens()

    def run_steps() -> None:
        while True:
            program.run(len(x), x=x)

    threading.Thread(target=run_steps, daemon=True).start()
    KEPT.append(LastStep(program, x))
    sys.exit(EXIT_STATUS)


@pytest.mark.skipif(not usable_instruction_sets(), reason="the native extension is not built")
def test_a_process_that_ends_during_a_daemon_threads_step_has_its_own_exit_status(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for _ in range(3):
        process = multiprocessing.get_context("spawn").Process(target=end_during_a_step)
        process.start()
        process.join(HANGS_AFTER_S)
        process.kill()  # if it hangs
        process.join()
        assert (process.exitcode, capfd.readouterr().err) == (EXIT_STATUS, "")
