"""Deadlines: what is refused at once, and what ends when its time has come. The clock is the test's."""

from __future__ import annotations

import pytest

from octavo.engine.core import EngineCore
from octavo.engine.deadlines import LEAST_STEPS, STALE_S, Deadlines, StepTimes
from octavo.types.outputs import EngineCoreOutputs, FinishReason
from octavo.types.params import SamplingParams
from octavo.types.requests import EngineCoreRequest
from octavo.types.steps import CachedRequestData, PauseState, SchedulerOutput
from tests.engine.observed import Clock
from tests.fakes import (
    FakeExecutor,
    generate_alone,
    make_core_of,
    make_kv_config,
    make_params,
    make_request,
    run_to_end,
    tokens_of,
)

FOREVER = make_params(1000, ignore_eos=True)


class Timed:
    """`StepTimes` that is told of steps of a chosen length."""

    def __init__(self) -> None:
        self.clock = Clock(100.0)
        self.step_times = StepTimes(self.clock)

    def plan(self, num_tokens: int) -> SchedulerOutput:
        output = SchedulerOutput(
            scheduled_new_reqs=[],
            scheduled_cached_reqs=CachedRequestData([], []),
            num_scheduled_tokens={},
            total_num_scheduled_tokens=num_tokens,
            finished_req_ids=set(),
            preempted_req_ids=set(),
            num_common_prefix_blocks=[],
        )
        self.step_times.step_planned(output)
        return output

    def done(self, output: SchedulerOutput | None) -> None:
        self.step_times.step_done(output, EngineCoreOutputs([]))

    def run(self, num_tokens: int, seconds: float) -> None:
        output = self.plan(num_tokens)
        self.clock.now += seconds
        self.done(output)

    def learn(self, fixed_s: float, token_s: float, num_steps: int = 100) -> None:
        for index in range(num_steps):
            num_tokens = 1 + index % 7
            self.run(num_tokens, fixed_s + token_s * num_tokens)

    def estimate(self, num_tokens: int, num_steps: int) -> float:
        return self.step_times.estimate_s(num_tokens, num_steps)


# ------------------------------------------------------------------------------------------------- step times


def test_a_step_takes_a_fixed_time_and_a_time_for_each_token() -> None:
    timed = Timed()
    timed.learn(fixed_s=0.02, token_s=0.001)
    assert timed.estimate(num_tokens=500, num_steps=3) == pytest.approx(0.56)


def test_too_few_steps_give_no_estimate() -> None:
    timed = Timed()
    timed.learn(0.02, 0.001, num_steps=LEAST_STEPS - 1)
    assert timed.estimate(500, 3) == 0
    timed.run(8, 0.028)
    assert timed.estimate(500, 3) == pytest.approx(0.56)


def test_steps_of_one_length_are_taken_to_cost_nothing_by_the_token() -> None:
    timed = Timed()
    for _ in range(50):
        timed.run(1, 0.02)
    assert timed.estimate(num_tokens=1000, num_steps=3) == pytest.approx(0.06)


def test_steps_that_take_longer_the_fewer_tokens_they_have_make_no_time_negative() -> None:
    timed = Timed()
    for index in range(50):
        timed.run(1 + index % 2, 0.02 - 0.005 * (index % 2))
    assert timed.estimate(1000, 1) > 0


def test_no_part_of_a_step_takes_less_than_nothing() -> None:
    """A line through these steps would begin below zero."""
    timed = Timed()
    for index in range(100):
        timed.run(1 + index % 4, 0.001 * (1 + index % 4) ** 3)
    assert timed.estimate(num_tokens=0, num_steps=10) >= 0


def test_an_old_measurement_is_forgotten() -> None:
    timed = Timed()
    timed.learn(0.5, 0.1, num_steps=300)
    timed.learn(0.02, 0.001, num_steps=700)
    assert timed.estimate(100, 10) == pytest.approx(0.3, rel=0.05)


def test_the_time_between_two_steps_is_nobodys() -> None:
    timed = Timed()
    for _ in range(50):
        timed.clock.now += 1000.0
        timed.run(1, 0.02)
    assert timed.estimate(1, 1) == pytest.approx(0.02)


def test_a_step_in_flight_takes_from_the_end_of_the_one_before() -> None:
    timed = Timed()
    first = timed.plan(1)
    for _ in range(50):
        second = timed.plan(1)
        timed.clock.now += 0.02
        timed.done(first)
        first = second
    assert timed.estimate(1, 1) == pytest.approx(0.02)


def test_idle_time_before_a_result_is_fetched_does_not_count() -> None:
    timed = Timed()
    first = timed.plan(1)
    for _ in range(50):
        timed.clock.now += 1000.0
        second = timed.plan(1)
        timed.clock.now += 0.02
        timed.done(first)
        first = second
    assert timed.estimate(1, 1) == pytest.approx(0.02)


def test_steps_of_no_tokens_do_not_count() -> None:
    timed = Timed()
    timed.learn(0.02, 0.001)
    for _ in range(100):
        timed.run(0, 5.0)
    timed.done(None)
    assert timed.estimate(500, 3) == pytest.approx(0.56)


def test_a_step_that_was_interrupted_and_never_told_of_does_not_count() -> None:
    timed = Timed()
    timed.plan(1000)
    for _ in range(50):
        timed.clock.now += 1000.0
        timed.run(1, 0.02)
    assert timed.estimate(1, 1) == pytest.approx(0.02)


# ------------------------------------------------------------------------------------------ refused at once


def deadlines_at(fixed_s: float = 0.0, token_s: float = 0.0) -> Deadlines:
    timed = Timed()
    timed.learn(fixed_s, token_s)
    return Deadlines(timed.clock, timed.step_times, max_num_batched_tokens=10)


def fits(deadlines: Deadlines, deadline_s: float, num_cached_tokens: int = 0, **params: object) -> bool:
    """Whether 25 prompt tokens and at most 8 output tokens are accepted."""
    request = make_request("a", [1] * 25, make_params(8, **params), deadline_s=deadline_s)
    rejection = deadlines.check(request, 25 - num_cached_tokens)
    assert rejection is None or rejection.param == "deadline_s"
    return rejection is None


def test_the_estimate_is_the_steps_of_the_prompt_and_one_for_each_later_token() -> None:
    deadlines = deadlines_at(fixed_s=1.0)
    assert fits(deadlines, 10.01, ignore_eos=True)  # 3 + 7 steps
    assert not fits(deadlines, 9.99, ignore_eos=True)


def test_every_token_that_runs_counts_and_the_last_one_does_not_run() -> None:
    deadlines = deadlines_at(token_s=1.0)
    assert fits(deadlines, 32.1, ignore_eos=True)
    assert not fits(deadlines, 31.9, ignore_eos=True)


@pytest.mark.parametrize(
    ("params", "num_outputs"),
    [
        ({}, 1),
        ({"min_tokens": 4}, 4),
        ({"ignore_eos": True, "stop": ("x",)}, 1),
        ({"ignore_eos": True, "stop_token_ids": (3,), "min_tokens": 2}, 2),
        ({"ignore_eos": True}, 8),
    ],
)
def test_only_tokens_that_will_surely_be_generated_count(params: dict[str, object], num_outputs: int) -> None:
    deadlines = deadlines_at(fixed_s=1.0)
    assert fits(deadlines, 2.01 + num_outputs, **params)
    assert not fits(deadlines, 1.99 + num_outputs, **params)


def test_cached_tokens_need_no_time() -> None:
    deadlines = deadlines_at(fixed_s=1.0)
    assert fits(deadlines, 1.01, num_cached_tokens=15)
    assert not fits(deadlines, 1.99, num_cached_tokens=14)


def test_a_request_without_a_deadline_has_all_the_time() -> None:
    assert deadlines_at(fixed_s=1e9).check(make_request("a", [1]), 1) is None


def test_a_deadline_that_is_past_is_refused_whatever_is_known() -> None:
    clock = Clock(100.0)
    assert not fits(Deadlines(clock, StepTimes(clock), 10), 0.0)


def test_an_old_measurement_refuses_no_request() -> None:
    core, clock = a_core()
    core.add_request(make_request("slow", [1, 2, 3], make_params(30, ignore_eos=True)))
    while core.has_unfinished_requests():
        step(core, clock, 1.0)
    hurried = make_request("a", [7], make_params(10, ignore_eos=True), deadline_s=3.0)
    clock.now += STALE_S
    core.add_request(hurried)
    assert "at the speed measured" in rejection_message(core)
    clock.now += 0.1
    core.add_request(hurried)
    while core.has_unfinished_requests():
        step(core, clock, 0.1)
    core.add_request(make_request("b", [7], make_params(10, ignore_eos=True), deadline_s=9.0))
    assert "b" in core.scheduler.requests


def test_a_refused_request_is_never_queued() -> None:
    core, clock = a_core()
    core.add_request(make_request("slow", [1, 2, 3], make_params(30, ignore_eos=True)))
    while core.has_unfinished_requests():
        step(core, clock, 1.0)
    core.add_request(make_request("a", [7], make_params(10, ignore_eos=True), deadline_s=3.0))
    assert "deadline_s is 3, and the request takes about 10 s" in rejection_message(core)
    assert not core.has_unfinished_requests()
    core.add_request(make_request("a", [7], make_params(10, ignore_eos=True), deadline_s=10.0))
    assert "a" in core.scheduler.requests


def test_of_a_turn_that_must_wait_for_another_only_the_answer_is_known() -> None:
    core, clock = a_core()
    core.add_request(make_request("s0", [1] * 20, make_params(30, ignore_eos=True), session_id="s"))
    for _ in range(20):
        step(core, clock, 1.0)
    turn = next_turn("s1", [2] * 20, make_params(5, ignore_eos=True), deadline_s=1.0)
    assert core.scheduler.table.num_tokens_to_compute(turn) == 0
    core.add_request(turn)
    assert "deadline_s is 1, and the request takes about" in rejection_message(core)


# ------------------------------------------------------------------------------------------------- too late


def next_turn(
    request_id: str, prompt: list[int], params: SamplingParams, **fields: object
) -> EngineCoreRequest:
    return make_request(request_id, prompt, params, session_id="s", continues_session=True, **fields)


def rejection_message(core: EngineCore) -> str:
    """Of the only output that the next step will bring. It is taken."""
    (rejection,) = [output.rejection for output in core.scheduler.table.outputs]
    core.scheduler.table.outputs.clear()
    assert rejection is not None
    assert rejection.param == "deadline_s"
    return rejection.message


def a_core(**settings: object) -> tuple[EngineCore, Clock]:
    clock = Clock(100.0)
    return make_core_of(make_kv_config(100), clock=clock, **settings), clock


def step(core: EngineCore, clock: Clock, seconds: float) -> dict[str, tuple[list[int], FinishReason | None]]:
    """A step that takes so long; the news of it."""
    runner = core.executor.runner
    assert isinstance(runner, FakeExecutor)
    sample_tokens = runner.sample_tokens

    def slowly() -> object:
        clock.now += seconds
        return sample_tokens()

    runner.sample_tokens = slowly
    try:
        outputs = core.step().outputs
    finally:
        runner.sample_tokens = sample_tokens
    core.check()
    failed = [output.stop_reason for output in outputs if output.finish_reason is FinishReason.ERROR]
    assert all(reason == "the deadline of 5 s has passed" for reason in failed)
    return {output.request_id: (output.new_token_ids, output.finish_reason) for output in outputs}


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_that_runs_too_long_ends_with_an_error_and_others_go_on(depth: int) -> None:
    core, clock = a_core(pipeline_depth=depth)
    core.add_request(make_request("a", [1], FOREVER, deadline_s=5.0))
    other = make_request("b", [2], make_params(12, ignore_eos=True))
    core.add_request(other)
    tokens: list[int] = []
    due = clock.now + 5.0
    while clock.now < due:
        news = step(core, clock, 1.0)
        assert news["a"][1] is None
        tokens += news["b"][0]
    news = step(core, clock, 1.0)
    assert news["a"] == ([], FinishReason.ERROR)
    tokens += news["b"][0] + tokens_of(run_to_end(core)["b"])
    assert tokens == generate_alone(other, 10_000)[0]
    core.step()
    assert core.scheduler.kv_cache.usage == 0


def test_a_request_may_end_in_the_step_in_which_its_time_runs_out() -> None:
    core, clock = a_core()
    core.add_request(make_request("a", [1], make_params(2, ignore_eos=True), deadline_s=5.0))
    step(core, clock, 4.0)
    assert step(core, clock, 4.0)["a"][1] is FinishReason.LENGTH
    assert step(core, clock, 4.0) == {}


def test_a_request_that_waits_too_long_ends_without_having_run() -> None:
    core, clock = a_core(max_num_seqs=1)
    core.add_request(make_request("a", [1], FOREVER))
    core.add_request(make_request("b", [2], FOREVER, deadline_s=5.0))
    step(core, clock, 6.0)
    assert step(core, clock, 1.0)["b"] == ([], FinishReason.ERROR)
    assert "b" not in core.scheduler.requests


def test_deadlines_pass_during_a_pause() -> None:
    core, clock = a_core()
    core.add_request(make_request("a", [1], FOREVER, deadline_s=5.0))
    core.pause(PauseState.PAUSED_ALL)
    step(core, clock, 6.0)
    assert step(core, clock, 0.0)["a"] == ([], FinishReason.ERROR)


def test_a_sessions_turn_that_is_too_late_ends_the_session() -> None:
    core, clock = a_core()
    core.add_request(make_request("s0", [1], make_params(1), session_id="s"))
    step(core, clock, 1.0)
    core.add_request(next_turn("s1", [2], FOREVER, deadline_s=5.0))
    step(core, clock, 6.0)
    assert step(core, clock, 0.0)["s1"] == ([], FinishReason.ERROR)
    assert not core.scheduler.table.sessions


def test_a_queued_turn_that_is_too_late_ends_the_session_and_each_turn_has_its_news() -> None:
    core, clock = a_core()
    core.add_request(make_request("s0", [1], FOREVER, session_id="s"))
    core.add_request(next_turn("s1", [2], FOREVER, deadline_s=5.0))
    step(core, clock, 6.0)
    outputs = core.step().outputs
    assert [(output.request_id, output.finish_reason) for output in outputs] == [
        ("s0", FinishReason.ERROR),
        ("s1", FinishReason.ERROR),
    ]
    assert not core.scheduler.table.sessions


def test_the_deadline_of_a_turn_that_has_ended_does_not_touch_the_next_one() -> None:
    core, clock = a_core()
    core.add_request(make_request("s0", [1], make_params(1), session_id="s", deadline_s=5.0))
    step(core, clock, 1.0)
    clock.now += 10.0
    assert step(core, clock, 0.0) == {}, "nor the idle session"
    core.add_request(next_turn("s1", [2], FOREVER))
    assert step(core, clock, 0.0)["s1"][1] is None


@pytest.mark.parametrize("deadline_s", [50.0, None])
def test_the_deadline_of_an_aborted_request_does_not_end_a_new_one_with_its_id(
    deadline_s: float | None,
) -> None:
    core, clock = a_core()
    core.add_request(make_request("a", [1], FOREVER, deadline_s=5.0))
    step(core, clock, 1.0)
    core.abort_requests(["a"])
    core.add_request(make_request("a", [1], FOREVER, deadline_s=deadline_s))
    step(core, clock, 6.0)
    assert step(core, clock, 1.0)["a"][1] is None


def test_deadlines_pass_in_order_of_time_not_of_arrival() -> None:
    core, clock = a_core()
    for name, deadline_s in (("late", 9.0), ("early", 5.0)):
        core.add_request(make_request(name, [ord(name[0])], FOREVER, deadline_s=deadline_s))
    step(core, clock, 6.0)
    news = step(core, clock, 0.0)
    assert (news["early"][1], news["late"][1]) == (FinishReason.ERROR, None)
