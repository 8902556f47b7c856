"""Pausing: nothing runs, or only what has begun; nobody loses anything by it."""

from __future__ import annotations

import pytest

from octavo.engine.core import EngineCore
from octavo.types.outputs import FinishReason
from octavo.types.requests import EngineCoreRequest
from octavo.types.steps import PauseState
from tests.fakes import (
    FakeConstraint,
    generate_alone,
    make_core,
    make_params,
    make_request,
    run_to_end,
    tokens_of,
)

POLICIES = ["fcfs", "priority", "fair"]


def a_request(name: str, max_tokens: int = 6, length: int = 5, **fields: object) -> EngineCoreRequest:
    return make_request(name, [1000 + ord(name)] * length, make_params(max_tokens, ignore_eos=True), **fields)


def add(core: EngineCore, names: str, max_tokens: int = 6, **fields: object) -> None:
    for name in names:
        core.add_request(a_request(name, max_tokens, arrival_time=float(ord(name)), **fields))


def step(core: EngineCore) -> list[str]:
    """One step; who ran in what was planned in it, in their order."""
    core.step()
    core.check()
    return list(core.executor.runner.outputs[-1].num_scheduled_tokens)


def admitted(core: EngineCore) -> list[str]:
    return [new.req_id for plan in core.executor.runner.outputs for new in plan.scheduled_new_reqs]


@pytest.mark.parametrize("policy", POLICIES)
def test_while_new_requests_are_paused_begun_requests_finish(policy: str) -> None:
    core = make_core(100, max_num_seqs=2, scheduling_policy=policy)
    add(core, "abc")
    step(core)
    core.pause(PauseState.PAUSED_NEW)
    add(core, "d")
    assert core.has_begun_requests()
    while core.has_begun_requests():
        assert set(step(core)) <= {"a", "b"}
    assert step(core) == []
    assert core.scheduler.num_waiting == 2
    assert core.has_unfinished_requests()
    core.pause(PauseState.UNPAUSED)
    assert step(core) == ["c", "d"]
    news = run_to_end(core)
    assert tokens_of(news["d"]) == generate_alone(a_request("d"), 10_000)[0][1:]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_while_all_requests_are_paused_none_runs_and_then_all_go_on(depth: int) -> None:
    core = make_core(100, max_num_seqs=2, pipeline_depth=depth)
    add(core, "abc")
    outputs = list(core.step().outputs)
    core.pause(PauseState.PAUSED_ALL)
    num_plans = len(core.executor.runner.outputs)
    for _ in range(4):
        outputs += core.step().outputs  # of steps that were in flight
        core.check()
    assert not any(plan.num_scheduled_tokens for plan in core.executor.runner.outputs[num_plans:])
    assert core.scheduler.num_running == 2
    assert core.has_begun_requests()
    core.pause(PauseState.UNPAUSED)
    outputs += [output for news in run_to_end(core).values() for output in news]
    for name in "abc":
        mine = [output for output in outputs if output.request_id == name]
        assert tokens_of(mine) == generate_alone(a_request(name), 10_000)[0]


@pytest.mark.parametrize("policy", POLICIES)
def test_paused_requests_and_later_arrivals_keep_their_order(policy: str) -> None:
    core = make_core(100, max_num_seqs=1, scheduling_policy=policy)
    add(core, "abc")
    step(core)
    for state in (PauseState.PAUSED_NEW, PauseState.PAUSED_ALL, PauseState.PAUSED_ALL, PauseState.PAUSED_NEW):
        core.pause(state)
        core.check()
    add(core, "de")
    core.pause(PauseState.UNPAUSED)
    add(core, "f")
    run_to_end(core)
    assert admitted(core) == list("abcdef")


def test_a_pause_keeps_the_order_of_requests_that_were_passed_over() -> None:
    constraint = FakeConstraint(vetoed={"b"})
    core = make_core(100, max_num_seqs=2, constraints=[constraint])
    add(core, "abcd")
    assert step(core) == ["a", "c"]
    core.pause(PauseState.PAUSED_NEW)
    step(core)
    constraint.vetoed = set()
    core.pause(PauseState.UNPAUSED)
    core.abort_requests(["a"])
    assert step(core) == ["c", "b"]


def test_paused_requests_run_before_later_ones_that_ran_and_were_preempted() -> None:
    constraint = FakeConstraint(vetoed={"b"})
    core = make_core(100, max_num_seqs=2, constraints=[constraint])
    add(core, "abc")
    step(core)
    core.pause(PauseState.PAUSED_NEW)
    constraint.vetoed = set()
    core.pause(PauseState.UNPAUSED)
    core.reset_prefix_cache(reset_running_requests=True)  # a and c wait again
    assert step(core) == ["a", "b"]


def test_the_most_urgent_request_runs_first_after_a_pause() -> None:
    core = make_core(100, max_num_seqs=1, scheduling_policy="priority")
    core.pause(PauseState.PAUSED_ALL)
    add(core, "ab", priority=5)
    add(core, "c", priority=1)
    assert step(core) == []
    core.pause(PauseState.UNPAUSED)
    run_to_end(core)
    assert admitted(core) == list("cab")


def test_a_preempted_request_has_begun_and_goes_on_while_new_ones_are_paused() -> None:
    core = make_core(7)
    core.add_request(a_request("a", 12, length=7))
    core.add_request(a_request("b", 12, length=7))
    while core.scheduler.requests["b"].num_preemptions == 0:
        step(core)
    core.add_request(a_request("c", 12, length=7))
    core.pause(PauseState.PAUSED_NEW)
    while core.has_begun_requests():
        assert "c" not in step(core)
    assert list(core.scheduler.requests) == ["c"]
    core.pause(PauseState.UNPAUSED)
    assert list(run_to_end(core)) == ["c"]


def test_a_preempted_request_counts_as_begun() -> None:
    core = make_core(7)
    core.add_request(a_request("a", 12, length=7))
    core.add_request(a_request("b", 12, length=7))
    while not core.executor.runner.outputs or not core.executor.runner.outputs[-1].preempted_req_ids:
        step(core)
    core.pause(PauseState.PAUSED_NEW)
    core.abort_requests(["a"])
    assert core.scheduler.num_running == 0
    assert core.has_begun_requests()


def test_the_first_and_next_turns_of_a_session_are_new() -> None:
    core = make_core(100)
    core.add_request(a_request("s", 2, session_id="s"))
    run_to_end(core)
    core.pause(PauseState.PAUSED_NEW)
    assert not core.has_begun_requests()
    core.add_request(a_request("t", 2, session_id="s", continues_session=True))
    assert step(core) == []
    core.pause(PauseState.UNPAUSED)
    assert step(core) == ["t"]


def test_a_queued_turn_waits_for_the_end_of_the_pause_and_the_turn_under_way_does_not() -> None:
    core = make_core(100)
    core.add_request(a_request("s", 3, session_id="s"))
    core.add_request(a_request("t", 3, session_id="s", continues_session=True))
    step(core)
    core.pause(PauseState.PAUSED_NEW)
    ends = [core.step().outputs[-1].finish_reason for _ in range(2)]
    assert ends == [None, FinishReason.LENGTH]
    assert step(core) == []
    core.pause(PauseState.UNPAUSED)
    assert len(tokens_of(run_to_end(core)["t"])) == 3


def test_a_paused_request_can_be_aborted() -> None:
    core = make_core(100, max_num_seqs=1)
    add(core, "ab")
    step(core)
    core.pause(PauseState.PAUSED_ALL)
    add(core, "c")
    aborted = core.abort_requests(["a", "b", "c"])
    assert [output.finish_reason for output in aborted] == [FinishReason.ABORT] * 3
    core.check()
    assert not core.has_unfinished_requests()
    core.pause(PauseState.UNPAUSED)
    core.check()


def test_a_paused_request_can_be_stopped() -> None:
    core = make_core(100)
    core.pause(PauseState.PAUSED_NEW)
    add(core, "ab")
    core.stop_requests(["a"])
    core.check()
    core.pause(PauseState.UNPAUSED)
    assert list(run_to_end(core)) == ["b"]


def test_no_request_is_displaced_while_all_are_paused() -> None:
    core = make_core(100, max_num_seqs=2, scheduling_policy="fair")
    add(core, "abc", tenant="first")
    step(core)
    add(core, "d", tenant="second")
    core.scheduler.table.pause_state = (
        PauseState.PAUSED_ALL
    )  # with d among those who wait, as if it had begun
    assert step(core) == []
    assert core.scheduler.num_running == 2


def test_after_a_cache_reset_in_a_pause_all_requests_begin_again() -> None:
    core = make_core(100)
    add(core, "ab")
    news = {output.request_id: [output] for output in core.step().outputs}
    core.pause(PauseState.PAUSED_ALL)
    assert core.reset_prefix_cache(reset_running_requests=True)
    assert step(core) == []
    assert core.has_begun_requests()
    core.pause(PauseState.UNPAUSED)
    assert step(core) == ["a", "b"]
    news = {name: [*news[name], *rest] for name, rest in run_to_end(core).items()}
    for name in "ab":
        due = generate_alone(a_request(name), 10_000)[0]
        assert tokens_of(news[name]) == [due[0], *due[2:]], "one token came with the step that was not kept"
