"""`InprocExecutor`: steps one after the other, on the caller's thread or on one of their own."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from octavo.engine.executor import InprocExecutor
from octavo.types.protocols import Done
from octavo.types.steps import CachedRequestData, ModelRunnerOutput, SchedulerOutput


class Recorder:
    """A runner that writes down what is asked of it, and on which thread; it waits where it is told to."""

    def __init__(self, fails_at: Sequence[str] = ()) -> None:
        self.calls: list[str] = []
        self.threads: set[int] = set()
        self.fails_at = fails_at
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self._step = 0

    def execute_model(self, output: SchedulerOutput) -> None:
        self._step = output.total_num_scheduled_tokens
        self._note("execute")

    def sample_tokens(self) -> Done[ModelRunnerOutput]:
        self._note("sample")
        return Done(ModelRunnerOutput(sampled_token_ids={"a": [self._step]}, logprobs={}))

    def _note(self, half: str) -> None:
        assert self.may_go_on.wait(timeout=30)
        self.calls.append(f"{half} {self._step}")
        self.threads.add(threading.get_ident())
        if self.calls[-1] in self.fails_at:
            raise KeyboardInterrupt(self.calls[-1]) if half == "sample" else ValueError(self.calls[-1])


def a_plan(step: int) -> SchedulerOutput:
    return SchedulerOutput(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=CachedRequestData([], []),
        num_scheduled_tokens={"a": 1},
        total_num_scheduled_tokens=step,
        finished_req_ids=set(),
        preempted_req_ids=set(),
        num_common_prefix_blocks=[],
    )


@pytest.mark.parametrize("threaded", [False, True])
def test_steps_run_one_after_the_other_and_results_belong_to_their_steps(threaded: bool) -> None:
    runner = Recorder()
    executor = InprocExecutor(runner, threaded)
    pending = []
    for step in range(3):
        executor.execute_model(a_plan(step))
        pending.append(executor.sample_tokens())
    results = [each.result().sampled_token_ids["a"] for each in reversed(pending)]
    assert results == [[2], [1], [0]]
    assert runner.calls == [f"{half} {step}" for step in range(3) for half in ("execute", "sample")]
    assert (threading.get_ident() in runner.threads) is not threaded
    assert len(runner.threads) == 1


@pytest.mark.parametrize("threaded", [False, True])
def test_what_goes_wrong_comes_out_of_the_result_of_its_step(threaded: bool) -> None:
    runner = Recorder(fails_at=["execute 0", "sample 1"])
    executor = InprocExecutor(runner, threaded)
    pending = []
    for step in range(3):
        executor.execute_model(a_plan(step))
        pending.append(executor.sample_tokens())
    with pytest.raises(ValueError, match="execute 0"):
        pending[0].result()
    with pytest.raises(KeyboardInterrupt, match="sample 1"):
        pending[1].result()
    assert pending[2].result().sampled_token_ids == {"a": [2]}
    assert "sample 0" not in runner.calls, "there was nothing to sample from"


def test_with_a_thread_the_caller_goes_on_while_the_step_runs() -> None:
    runner = Recorder()
    runner.may_go_on.clear()
    executor = InprocExecutor(runner, threaded=True)
    executor.execute_model(a_plan(0))
    pending = executor.sample_tokens()
    assert runner.calls == []
    runner.may_go_on.set()
    assert pending.result().sampled_token_ids == {"a": [0]}
