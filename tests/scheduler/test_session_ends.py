"""How a session's turns end, and the session with them or not: stops, errors, a full context."""

from __future__ import annotations

import pytest

from octavo.errors import RequestError
from octavo.types.outputs import FinishReason
from tests.fakes import generate_after, make_core, make_request, run_to_end, tokens_of
from tests.scheduler.turns import (
    ABORT,
    ERROR,
    FOREVER,
    MODEL_LEN,
    SIX,
    a_turn,
    answers_in,
    due,
    ends,
    run_turn,
    the_end,
    worker_is_empty,
)

# -------------------------------------------------------------------------------------------- ids and the end


def test_a_message_that_is_not_resumable_ends_an_idle_session_and_brings_nothing() -> None:
    core = make_core(100)
    run_turn(core, a_turn([1]))
    core.add_request(the_end())
    assert not core.scheduler.requests
    assert run_to_end(core) == {}
    assert worker_is_empty(core)


def test_the_end_waits_for_the_turns_before_it() -> None:
    core = make_core(100)
    turns = [a_turn([1]), a_turn([2])]
    for message in (*turns, the_end()):
        core.add_request(message)
    assert answers_in(run_to_end(core)["s"]) == due(*turns)
    assert not core.scheduler.requests


def test_after_its_end_marker_a_session_takes_nothing_more_until_it_has_ended() -> None:
    core = make_core(100)
    core.add_request(a_turn([1]))
    core.add_request(the_end())
    with pytest.raises(RequestError, match="'s' is in use"):
        core.add_request(a_turn([2]))
    run_to_end(core)
    assert tokens_of(run_turn(core, a_turn([2]))) == due(a_turn([2]))[0], "another session of that name"


@pytest.mark.parametrize("resumable", [True, False])
def test_a_request_that_is_no_session_cannot_go_on(resumable: bool) -> None:
    core = make_core(100)
    core.add_request(the_end_of_none := make_request("s", [1], SIX))
    with pytest.raises(RequestError, match="'s' is in use"):
        core.add_request(a_turn([2], resumable=resumable))
    assert tokens_of(run_to_end(core)["s"]) == generate_after([1], the_end_of_none, MODEL_LEN)[0]
    assert not core.scheduler.requests


def test_aborting_a_session_ends_it_with_all_its_turns_each_with_its_news() -> None:
    core = make_core(100)
    for prompt in ([1], [2], [3]):
        core.add_request(a_turn(prompt, FOREVER))
    core.add_request(the_end())
    core.step()
    assert ends(core.abort_requests(["s"])) == [ABORT] * 3
    assert not core.scheduler.requests
    assert worker_is_empty(core)


def test_aborting_an_idle_session_is_no_news() -> None:
    core = make_core(100)
    run_turn(core, a_turn([1]))
    assert core.abort_requests(["s"]) == []
    assert not core.scheduler.requests


# ------------------------------------------------------------------------------------------------- stopping


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_stopping_ends_the_turn_and_the_session_goes_on(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    core.add_request(a_turn([1, 2, 3], FOREVER))
    got: list[int] = []
    while len(got) < 4:
        got += tokens_of(core.step().outputs)
    core.stop_requests(["s"])
    core.scheduler.check()
    assert core.step().outputs == [], "nothing more is heard of it, not even what was on its way"
    second = a_turn([4])
    assert tokens_of(run_turn(core, second)) == generate_after([1, 2, 3, *got[:3], 4], second, MODEL_LEN)[0]


def test_stopping_a_turn_lets_the_queued_one_begin() -> None:
    core = make_core(100)
    core.add_request(a_turn([1, 2, 3], FOREVER))
    second = a_turn([4])
    core.add_request(second)
    got = tokens_of(core.step().outputs)
    core.stop_requests(["s"])
    news = run_to_end(core)["s"]
    assert answers_in(news) == [generate_after([1, 2, 3, *got[:-1], 4], second, MODEL_LEN)[0]]


def test_stopping_a_turn_that_has_not_begun_leaves_its_prompt() -> None:
    core = make_core(100)
    core.add_request(a_turn([1, 2, 3]))
    core.stop_requests(["s"])
    core.scheduler.check()
    second = a_turn([4])
    assert tokens_of(run_turn(core, second)) == generate_after([1, 2, 3, 4], second, MODEL_LEN)[0]


def test_stopping_an_idle_session_or_nobody_does_nothing() -> None:
    core = make_core(100)
    turns = [a_turn([1]), a_turn([2])]
    first = tokens_of(run_turn(core, turns[0]))
    core.stop_requests(["s", "nobody"])
    assert [first, tokens_of(run_turn(core, turns[1]))] == due(*turns)


def test_stopping_a_request_that_is_no_session_ends_it() -> None:
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
    for prompt in ([1, 2, 3], [8], [9]):
        core.add_request(a_turn(prompt, FOREVER))
    got: list[int] = []
    while len(got) < 4:
        got += tokens_of(core.step().outputs)
    core.stop_turns("s")
    core.scheduler.check()
    assert core.step().outputs == []
    assert not core.has_unfinished_requests()
    last = a_turn([4])
    assert tokens_of(run_turn(core, last)) == generate_after([1, 2, 3, *got[:3], 4], last, MODEL_LEN)[0]


def test_stopping_all_turns_of_a_session_that_is_to_end_ends_it() -> None:
    core = make_core(100)
    for message in (a_turn([1], FOREVER), a_turn([2]), the_end()):
        core.add_request(message)
    core.step()
    core.stop_turns("s")
    assert not core.scheduler.requests
    assert worker_is_empty(core)


def test_stopping_all_turns_of_an_idle_session_or_of_nobody_does_nothing() -> None:
    core = make_core(100)
    turns = [a_turn([1]), a_turn([2])]
    first = tokens_of(run_turn(core, turns[0]))
    for request_id in ("s", "nobody"):
        core.stop_turns(request_id)
    assert [first, tokens_of(run_turn(core, turns[1]))] == due(*turns)


# --------------------------------------------------------------------------------------------------- errors


def test_a_turn_that_goes_on_is_refused_where_its_session_has_ended_unheard() -> None:
    core = make_core(100)
    turns = [a_turn([1]), a_turn([2], goes_on=True)]
    assert [tokens_of(run_turn(core, turn)) for turn in turns] == due(*turns)
    core.abort_requests(["s"])
    with pytest.raises(RequestError, match="the session has ended; begin another") as raised:
        core.add_request(a_turn([3], goes_on=True))
    assert raised.value.param == "session"
    assert not core.scheduler.requests


@pytest.mark.parametrize("depth", [1, 2])
def test_logits_that_are_no_numbers_end_the_session_and_refuse_its_turns(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    core.executor.runner.invalid.add(("s", 3))
    for prompt in ([1, 2, 3], [4], [5]):
        core.add_request(a_turn(prompt))
    news = run_to_end(core)["s"]
    assert ends(news) == [ERROR] * 3
    assert "not finite" in str(news[0].stop_reason)
    assert "the turn before ended with an error" in str(news[1].stop_reason)
    assert not core.scheduler.requests
    assert worker_is_empty(core)


@pytest.mark.parametrize("half", ["forward", "sample"])
def test_a_step_that_fails_ends_the_sessions_in_it_and_their_turns(half: str) -> None:
    core = make_core(100)
    for prompt in ([1, 2, 3], [4]):
        core.add_request(a_turn(prompt))
    core.executor.runner.fails_in = half
    assert ends(run_to_end(core)["s"]) == [ERROR] * 2
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
    core.scheduler.check()
    assert [first, tokens_of(run_turn(core, turns[1]))] == due(*turns)


# --------------------------------------------------------------------------------------------------- length


def test_a_turn_for_which_the_context_has_no_room_is_refused_and_the_session_lives() -> None:
    core = make_core(100, max_model_len=12)
    turns = [a_turn([1, 2, 3]), a_turn([4, 5, 6])]
    first = tokens_of(run_turn(core, turns[0]))  # 8 tokens are left of it
    with pytest.raises(RequestError, match=r"has 4 tokens.*at most 3 after the 8 of its session") as raised:
        core.add_request(a_turn([4, 5, 6, 7]))
    assert raised.value.param == "prompt"
    last = run_turn(core, turns[1])
    assert first == due(turns[0])[0]
    assert ends(last) == [FinishReason.LENGTH]
    assert len(tokens_of(last)) == 1, "the context is full"
    with pytest.raises(RequestError, match="at most 0 after the 11"):
        core.add_request(a_turn([4]))


@pytest.mark.parametrize("prompt", [[4] * 4, []])
def test_a_queued_turn_that_turns_out_not_to_fit_ends_the_session(prompt: list[int]) -> None:
    core = make_core(100, max_model_len=12)
    for each in ([1, 2, 3], prompt, [9]):
        core.add_request(a_turn(each))
    news = run_to_end(core)["s"]
    assert ends(news) == [FinishReason.LENGTH, ERROR, ERROR]
    assert f"has {len(prompt)} tokens" in str(news[-1].stop_reason)
    assert not core.scheduler.requests
    assert worker_is_empty(core)


def test_what_a_stop_brings_upon_the_queued_turn_is_told_by_another_step() -> None:
    core = make_core(100, max_model_len=12)
    core.add_request(a_turn([1] * 9, FOREVER))
    core.add_request(a_turn([4] * 4))
    core.step()
    core.stop_requests(["s"])
    assert core.has_unfinished_requests()
    assert ends(run_to_end(core)["s"]) == [ERROR]
