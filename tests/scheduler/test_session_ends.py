"""How a session's turns end, and the session with them or not: stops, errors, a full context."""

from __future__ import annotations

import pytest

from octavo.engine.core import EngineCore
from octavo.types.outputs import FinishReason, Rejection
from tests.fakes import generate_after, make_core, make_request, run_to_end, tokens_of
from tests.scheduler.turns import (
    ABORT,
    ERROR,
    FOREVER,
    MODEL_LEN,
    SIX,
    a_turn,
    add,
    answers_in,
    context_of,
    due,
    ends,
    has_session,
    run_turn,
    run_turns,
    worker_is_empty,
)


def rejections(core: EngineCore) -> list[Rejection | None]:
    """What the outputs of the next step reject."""
    return [output.rejection for output in core.step().outputs]


# -------------------------------------------------------------------------------------------- ids and the end


def test_ending_an_idle_session_reports_nothing() -> None:
    core = make_core(100)
    run_turn(core, a_turn([1]))
    core.end_session("s")
    assert not has_session(core)
    assert run_to_end(core) == {}
    assert worker_is_empty(core)


@pytest.mark.parametrize("depth", [1, 2])
def test_ending_a_session_ends_all_its_turns_without_further_outputs(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    add(core, *(a_turn([number], FOREVER) for number in range(3)))
    core.step()
    core.end_session("s")
    core.check()
    assert run_turns(core) == []
    assert not has_session(core)
    assert worker_is_empty(core)


def test_a_session_that_ends_with_an_error_gives_the_error_to_its_turns() -> None:
    core = make_core(100)
    add(core, a_turn([1], FOREVER), a_turn([2]))
    core.step()
    core.end_session("s", "a bad day")
    outputs = run_turns(core)
    assert ends(outputs) == [ERROR] * 2
    assert {output.stop_reason for output in outputs} == {"the turn before ended with an error: a bad day"}
    assert worker_is_empty(core)


def test_ending_a_session_that_is_unknown_or_has_ended_does_nothing() -> None:
    core = make_core(100)
    run_turn(core, a_turn([1]))
    for session_id in ("another", "s", "s"):
        core.end_session(session_id)
    assert run_to_end(core) == {}


def test_a_session_of_the_same_name_may_begin_when_one_has_ended() -> None:
    core = make_core(100)
    run_turn(core, a_turn([1]))
    core.end_session("s")
    assert tokens_of(run_turn(core, a_turn([2]))) == due(a_turn([2]))[0]


def test_two_sessions_at_once_cannot_have_one_name() -> None:
    core = make_core(100)
    add(core, first := a_turn([1]))
    core.add_request(a_turn([2]))
    outputs = run_to_end(core)
    assert tokens_of(outputs.pop(first.request_id)) == due(first)[0]
    ((output,),) = outputs.values()
    assert output.rejection == Rejection("session id 's' is in use", "session_id")


@pytest.mark.parametrize("number", [0, 1], ids=["under way", "to come"])
def test_the_request_id_of_a_turn_is_in_use_until_it_has_ended(number: int) -> None:
    core = make_core(100)
    turns = [a_turn([1]), a_turn([2])]
    add(core, *turns)
    core.add_request(make_request(turns[number].request_id, [3], SIX))
    assert rejections(core)[0] == Rejection(
        f"request id {turns[number].request_id!r} is in use", "request_id"
    )
    assert not any(output.rejection for output in run_turns(core))
    core.add_request(make_request(turns[number].request_id, [3], SIX))
    assert tokens_of(run_to_end(core)[turns[number].request_id])


@pytest.mark.parametrize("number", [0, 1], ids=["under way", "to come"])
def test_aborting_a_turn_ends_its_session_with_all_its_turns(number: int) -> None:
    core = make_core(100)
    turns = [a_turn([number], FOREVER) for number in range(3)]
    add(core, *turns)
    core.step()
    (output,) = core.abort_requests([turns[number].request_id])
    assert (output.request_id, output.finish_reason) == (turns[number].request_id, ABORT)
    assert not has_session(core)
    assert ends(run_turns(core)) == [ABORT] * 2, "of the other turns"
    assert worker_is_empty(core)


def test_aborting_everything_ends_idle_sessions_too() -> None:
    core = make_core(100)
    run_turn(core, a_turn([1]))
    assert core.abort_requests(None) == []
    assert not has_session(core)


# ------------------------------------------------------------------------------------------------- stopping


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_stopping_ends_the_turn_and_the_session_goes_on(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    add(core, turn := a_turn([1, 2, 3], FOREVER))
    got: list[int] = []
    while len(got) < 4:
        got += tokens_of(core.step().outputs)
    core.stop_requests([turn.request_id])
    core.check()
    assert core.step().outputs == [], "nothing more is heard of it, not even what was on its way"
    second = a_turn([4])
    assert tokens_of(run_turn(core, second)) == generate_after([1, 2, 3, *got[:3], 4], second, MODEL_LEN)[0]


def test_stopping_a_turn_lets_the_queued_one_begin() -> None:
    core = make_core(100)
    first, second = a_turn([1, 2, 3], FOREVER), a_turn([4])
    add(core, first, second)
    got = tokens_of(core.step().outputs)
    core.stop_requests([first.request_id])
    assert answers_in(run_turns(core)) == [generate_after([1, 2, 3, *got[:-1], 4], second, MODEL_LEN)[0]]


def test_stopping_a_turn_that_has_not_run_leaves_its_prompt() -> None:
    core = make_core(100)
    add(core, first := a_turn([1, 2, 3]))
    core.stop_requests([first.request_id])
    core.check()
    second = a_turn([4])
    assert tokens_of(run_turn(core, second)) == generate_after([1, 2, 3, 4], second, MODEL_LEN)[0]


def test_stopping_a_turn_to_come_drops_it_alone() -> None:
    core = make_core(100)
    turns = [a_turn([1]), a_turn([2]), a_turn([3])]
    add(core, *turns)
    core.stop_requests([turns[1].request_id])
    core.check()
    assert answers_in(run_turns(core)) == due(turns[0], turns[2])


def test_stopping_a_turn_that_has_ended_or_an_unknown_id_does_nothing() -> None:
    core = make_core(100)
    turns = [a_turn([1]), a_turn([2])]
    first = tokens_of(run_turn(core, turns[0]))
    core.stop_requests([turns[0].request_id, "unknown"])
    assert [first, tokens_of(run_turn(core, turns[1]))] == due(*turns)


def test_stopping_a_request_that_is_no_turn_ends_it() -> None:
    core = make_core(100)
    core.add_request(make_request("a", [1], FOREVER))
    core.step()
    core.stop_requests(["a"])
    assert not core.scheduler.requests
    assert core.step().outputs == []
    assert worker_is_empty(core)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_stopping_all_turns_drops_those_to_come_and_the_session_goes_on(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    turns = [a_turn(prompt, FOREVER) for prompt in ([1, 2, 3], [8], [9])]
    add(core, *turns)
    got: list[int] = []
    while len(got) < 4:
        got += tokens_of(core.step().outputs)
    core.stop_requests([turn.request_id for turn in turns])
    core.check()
    assert core.step().outputs == []
    assert not core.has_unfinished_requests()
    assert context_of(core) == [1, 2, 3, *got[:3]]
    last = a_turn([4])
    assert tokens_of(run_turn(core, last)) == generate_after([1, 2, 3, *got[:3], 4], last, MODEL_LEN)[0]


# --------------------------------------------------------------------------------------------------- errors


def test_a_turn_that_continues_a_session_is_rejected_where_the_session_has_ended_unheard() -> None:
    core = make_core(100)
    turns = [a_turn([1]), a_turn([2])]
    assert [tokens_of(run_turn(core, turn)) for turn in turns] == due(*turns)
    core.abort_requests(None)
    core.add_request(a_turn([3], continues_session=True))
    assert rejections(core) == [Rejection("the session has ended; begin another", "session")]
    assert not has_session(core)


def test_a_turn_that_was_sent_before_its_predecessor_was_known_to_be_rejected_is_rejected_too() -> None:
    """It must not run without what should have been said before."""
    core = make_core(100, max_model_len=16)
    turns = [a_turn([1, 2, 3]), a_turn([4])]
    first = tokens_of(run_turn(core, turns[0]))
    add(core, a_turn([4] * 8))
    for _ in range(2):
        add(core, a_turn([5], follows_unfinished=True))
    too_long, *behind = rejections(core)
    assert "has 8 tokens" in too_long.message
    assert (
        behind == [Rejection("the turn before this one was rejected; append this one again", "session")] * 2
    )
    assert [first, tokens_of(run_turn(core, turns[1]))] == due(*turns)


def test_a_turn_behind_a_rejected_first_turn_is_rejected_for_want_of_a_session() -> None:
    core = make_core(100, max_model_len=12)
    core.add_request(a_turn([1] * 12))
    core.add_request(a_turn([2], continues_session=True, follows_unfinished=True))
    assert [rejection.param for rejection in rejections(core)] == ["prompt", "session"]
    assert not has_session(core)
    assert tokens_of(run_turn(core, a_turn([1]))) == due(a_turn([1]))[0]


def test_a_turn_that_follows_an_unfinished_one_waits_for_it() -> None:
    core = make_core(100)
    turns = [a_turn([1]), a_turn([2], follows_unfinished=True)]
    add(core, *turns)
    assert answers_in(run_turns(core)) == due(*turns)


@pytest.mark.parametrize("depth", [1, 2])
def test_logits_that_are_no_numbers_end_the_session_and_its_turns(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    turns = [a_turn(prompt) for prompt in ([1, 2, 3], [4], [5])]
    core.executor.runner.invalid.add((turns[0].request_id, 3))
    add(core, *turns)
    outputs = run_turns(core)
    assert ends(outputs) == [ERROR] * 3
    assert "not finite" in str(outputs[0].stop_reason)
    assert "the turn before ended with an error" in str(outputs[1].stop_reason)
    assert not has_session(core)
    assert worker_is_empty(core)


@pytest.mark.parametrize("half", ["forward", "sample"])
def test_a_step_that_fails_ends_the_sessions_in_it_and_their_turns(half: str) -> None:
    core = make_core(100)
    add(core, a_turn([1, 2, 3]), a_turn([4]))
    core.executor.runner.fails_in = half
    assert ends(run_turns(core)) == [ERROR] * 2
    assert worker_is_empty(core)


def test_a_step_that_cannot_be_planned_does_not_end_an_idle_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go unnoticed, and a next turn would begin without what was said before."""
    core = make_core(100)
    turns = [a_turn([1]), a_turn([2])]
    first = tokens_of(run_turn(core, turns[0]))
    core.add_request(make_request("a", [9], SIX))
    with monkeypatch.context() as patch:
        patch.setattr(core.scheduler, "_make_output", None)
        (failed,) = core.step().outputs
    assert (failed.request_id, failed.finish_reason) == ("a", ERROR)
    core.check()
    assert [first, tokens_of(run_turn(core, turns[1]))] == due(*turns)


# --------------------------------------------------------------------------------------------------- length


def test_a_turn_that_exceeds_the_context_is_rejected_and_the_session_goes_on() -> None:
    core = make_core(100, max_model_len=12)
    turns = [a_turn([1, 2, 3]), a_turn([4, 5, 6])]
    first = tokens_of(run_turn(core, turns[0]))  # 8 tokens are left of it
    (refused,) = run_turn(core, a_turn([4, 5, 6, 7]))
    assert refused.rejection.message == refused.stop_reason
    assert "has 4 tokens" in refused.rejection.message
    assert "at most 3 after the 8 of its session" in refused.rejection.message
    assert refused.rejection.param == "prompt"
    last = run_turn(core, turns[1])
    assert first == due(turns[0])[0]
    assert ends(last) == [FinishReason.LENGTH]
    assert len(tokens_of(last)) == 1, "the context is full"
    (refused,) = run_turn(core, a_turn([4]))
    assert "at most 0 after the 11" in refused.rejection.message


@pytest.mark.parametrize("prompt", [[4] * 4, []])
def test_a_queued_turn_that_turns_out_not_to_fit_ends_the_session(prompt: list[int]) -> None:
    core = make_core(100, max_model_len=12)
    add(core, *(a_turn(each) for each in ([1, 2, 3], prompt, [9])))
    outputs = run_turns(core)
    assert ends(outputs) == [FinishReason.LENGTH, ERROR, ERROR]
    assert f"has {len(prompt)} tokens" in str(outputs[-1].stop_reason)
    assert not has_session(core)
    assert worker_is_empty(core)


def test_a_later_step_reports_the_effect_of_a_stop_on_the_queued_turn() -> None:
    core = make_core(100, max_model_len=12)
    add(core, first := a_turn([1] * 9, FOREVER), a_turn([4] * 4))
    core.step()
    core.stop_requests([first.request_id])
    assert core.has_unfinished_requests()
    assert ends(run_turns(core)) == [ERROR]
