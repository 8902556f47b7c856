"""Requests that need something before they can run wait for it, and nothing else does."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Timer

from octavo.engine.core import EngineCore
from octavo.errors import RequestError
from octavo.scheduler.request import RequestStatus
from octavo.types.outputs import FinishReason, Rejection
from octavo.types.steps import PauseState
from tests.fakes import (
    FakeConstraint,
    generate_alone,
    make_core_of,
    make_kv_config,
    make_request,
    run_to_end,
    tokens_of,
)


def make_core(*prepared: str) -> tuple[EngineCore, FakeConstraint]:
    """A core whose constraint prepares the requests named in `prepared`."""
    constraint = FakeConstraint(preparations={name: Future() for name in prepared})
    return make_core_of(make_kv_config(100), constraints=[constraint]), constraint


def test_a_request_that_is_prepared_waits_and_others_pass_it() -> None:
    core, constraint = make_core("slow")
    slow, fast = make_request("slow", [3, 4]), make_request("fast", [5])
    core.add_request(slow)
    core.add_request(fast)
    ended = []
    while len(ended) < len(generate_alone(fast, 10_000)[0]):
        ended += core.step().outputs
        core.check()
        assert core.scheduler.requests["slow"].status is RequestStatus.WAITING_FOR_PREPARATION
        assert core.scheduler.num_waiting == 1
    assert {output.request_id for output in ended} == {"fast"}
    constraint.preparations["slow"].set_result(None)
    assert tokens_of(run_to_end(core)["slow"]) == generate_alone(slow, 10_000)[0]


def test_a_step_without_tokens_waits_for_what_is_prepared() -> None:
    core, constraint = make_core("a")
    core.add_request(make_request("a", [3, 4]))
    timer = Timer(0.05, constraint.preparations["a"].set_result, [None])
    timer.start()
    num_steps = 0
    while not core.step().outputs:
        num_steps += 1
    timer.join()
    assert num_steps < 1000, "steps spin while nothing can run"
    run_to_end(core)


def test_a_preparation_that_fails_ends_its_own_request() -> None:
    core, constraint = make_core("bad", "worse")
    for name in ("bad", "worse", "good"):
        core.add_request(make_request(name, [3, 4]))
    constraint.preparations["bad"].set_exception(RequestError("regex is wrong", "regex"))
    constraint.preparations["worse"].set_exception(ValueError("no"))
    outputs = run_to_end(core)
    assert outputs["good"][-1].finish_reason is not FinishReason.ERROR
    (bad,), (worse,) = outputs["bad"], outputs["worse"]
    assert (bad.finish_reason, bad.rejection) == (FinishReason.ERROR, Rejection("regex is wrong", "regex"))
    assert (worse.finish_reason, worse.stop_reason, worse.rejection) == (
        FinishReason.ERROR,
        "ValueError: no",
        None,
    )


def test_a_request_can_be_aborted_while_it_is_prepared() -> None:
    core, constraint = make_core("a")
    core.add_request(make_request("a", [3, 4]))
    core.step()
    assert [output.request_id for output in core.abort_requests(["a"])] == ["a"]
    constraint.preparations["a"].set_result(None)
    assert run_to_end(core) == {}
    core.check()


def test_a_request_that_is_prepared_during_a_pause_begins_after_it() -> None:
    core, constraint = make_core("a")
    core.add_request(make_request("a", [3, 4]))
    core.pause(PauseState.PAUSED_NEW)
    constraint.preparations["a"].set_result(None)
    for _ in range(3):
        assert core.step().outputs == []
        core.check()
    core.pause(PauseState.UNPAUSED)
    assert tokens_of(run_to_end(core)["a"])


def test_a_turn_of_a_session_is_prepared_when_it_begins() -> None:
    core, constraint = make_core("second")
    core.add_request(make_request("first", [3, 4], session_id="s"))
    core.add_request(make_request("second", [5], session_id="s", continues_session=True))
    while "second" not in core.scheduler.requests:
        core.step()
        core.check()
    core.step()
    assert core.scheduler.requests["second"].status is RequestStatus.WAITING_FOR_PREPARATION
    constraint.preparations["second"].set_result(None)
    assert tokens_of(run_to_end(core)["second"])


def test_a_session_ends_with_a_turn_whose_preparation_fails() -> None:
    core, constraint = make_core("second")
    core.add_request(make_request("first", [3, 4], session_id="s"))
    for name in ("second", "third"):
        core.add_request(make_request(name, [5], session_id="s", continues_session=True))
    constraint.preparations["second"].set_exception(RequestError("regex is wrong", "regex"))
    outputs = run_to_end(core)
    for name in ("second", "third"):
        (output,) = outputs[name]
        assert (output.finish_reason, output.rejection) == (FinishReason.ERROR, None)
        assert "regex is wrong" in output.stop_reason
