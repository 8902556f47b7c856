"""What a step costs does not depend on how many wait or how long an output is: counted in instructions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from octavo.bench.scheduler import SchedulerCase, measure, render
from octavo.scheduler.request import RequestStatus
from octavo.scheduler.scheduler import Scheduler
from octavo.types.params import RepetitionDetectionParams
from octavo.types.steps import ModelRunnerOutput
from tests.fakes import make_kv_config, make_params, make_request, make_scheduler

TraceFunction = Callable[[FrameType, str, object], object]

REPETITION = RepetitionDetectionParams(max_pattern_size=5, min_count=3)
FOREVER = make_params(None, ignore_eos=True, repetition_detection=REPETITION)


def step(scheduler: Scheduler) -> None:
    planned = scheduler.schedule()
    # Tokens that never repeat themselves, so that nobody ends.
    sampled = {
        req_id: [1 + scheduler.requests[req_id].num_tokens] for req_id in planned.output.num_scheduled_tokens
    }
    scheduler.update_from_output(planned, ModelRunnerOutput(sampled_token_ids=sampled, logprobs={}))


def cost_of_a_step(scheduler: Scheduler) -> int:
    """Bytecode instructions of Octavo that the next step executes."""
    return cost_of(lambda: step(scheduler))


def cost_of(work: Callable[[], object]) -> int:
    """Bytecode instructions of Octavo that `work` executes."""
    count = 0

    def tally(frame: FrameType, event: str, arg: object) -> TraceFunction | None:
        nonlocal count
        if not frame.f_globals["__name__"].startswith("octavo."):
            return None  # the garbage collector may call anybody at any time
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return tally

    before = sys.gettrace()
    sys.settrace(tally)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.fixture(autouse=True)
def traced_before() -> None:
    """Python 3.12 counts no instruction of a function the first time it is traced."""
    cost_of_a_step(running(2, 2, 20))
    assert cost_of_a_step(running(2, 2, 20)) > 0


def running(num_running: int, num_waiting: int, length: int) -> Scheduler:
    """A scheduler with a free row whose first waiting request does not fit, at outputs of `length` tokens."""
    scheduler = make_scheduler(
        make_kv_config(2000), max_num_seqs=num_running + 1, max_num_batched_tokens=10_000, max_model_len=10**6
    )
    for number in range(num_running):
        scheduler.add_request(make_request(f"r{number}", [10_000 + number], FOREVER))
    step(scheduler)
    for number in range(num_waiting):
        prompt = [9] * (scheduler.max_model_len - 1)
        request = make_request(f"w{number}", prompt if number == 0 else [9], FOREVER, arrival_time=1.0)
        scheduler.add_request(request)
    for _ in range(length):
        step(scheduler)
    assert len(scheduler.running) == num_running
    return scheduler


@pytest.mark.parametrize("num_running", [1, 3])
def test_a_step_costs_the_same_after_twenty_and_after_a_thousand_tokens(num_running: int) -> None:
    assert cost_of_a_step(running(num_running, 0, 20)) == cost_of_a_step(running(num_running, 0, 1020))


def test_a_step_costs_the_same_with_ten_and_with_thousands_waiting() -> None:
    assert cost_of_a_step(running(3, 10, 12)) == cost_of_a_step(running(3, 5000, 12))


def test_cancelling_many_at_once_costs_in_proportion_to_how_many_wait() -> None:
    def cost(num_waiting: int) -> int:
        scheduler = running(3, num_waiting, 12)
        cancelled = [f"w{number}" for number in range(num_waiting) if number % 10]
        return cost_of(lambda: scheduler.finish_requests(cancelled, RequestStatus.FINISHED_ABORTED))

    assert 0 < cost(2000) < 2.1 * cost(1000)


def test_the_benchmark_measures_the_load_it_names() -> None:
    cost = measure(SchedulerCase(num_running=3, num_waiting=5, position=20), num_steps=20, num_runs=2)
    assert 0 < cost.us_per_request < cost.step_us
    assert max(cost.schedule_us, cost.update_us) < cost.step_us
    table = render([cost])
    assert [next(iter(column.cells)) for column in table.columns[:3]] == ["3", "5", "20"]
