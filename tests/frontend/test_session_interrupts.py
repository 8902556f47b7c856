"""Ctrl-C in a session: what becomes of the turn, and of the text."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import msgspec
import pytest

from octavo import LLM
from octavo.errors import RequestError
from octavo.frontend.session import Session
from octavo.types.params import RequestOutputKind
from tests.frontend.tiny_llm import GREEDY, assert_idle, at_once, core_of, make_llm, tokens_of

DELTA = msgspec.structs.replace(GREEDY, output_kind=RequestOutputKind.DELTA)
SHORT = msgspec.structs.replace(GREEDY, max_tokens=1)  # ends with its first step
LONG = msgspec.structs.replace(GREEDY, max_tokens=50)


@pytest.fixture(scope="module", params=[1, 2], ids=["one step", "two steps in flight"])
def llm(tiny_model: Path, request: pytest.FixtureRequest) -> LLM:
    return make_llm(tiny_model, pipeline_depth=request.param)


@contextmanager
def ctrl_c_at(holder: object, name: str, call: int = 1, times: int = 1) -> Iterator[None]:
    """Ctrl-C at the end of the call of a method that is the `call`th from now, counted from 1."""
    calls = []
    method = getattr(holder, name)

    def interrupted(*arguments: object) -> object:
        calls.append(1)
        result = method(*arguments)
        for _ in range(times if len(calls) == call else 0):
            os.kill(os.getpid(), signal.SIGINT)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holder, name, interrupted)
        yield
    assert len(calls) >= call
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def ctrl_c(llm: LLM, plan: int) -> AbstractContextManager[None]:
    """Ctrl-C while the step is planned that is the `plan`th from now, counted from 1."""
    return ctrl_c_at(core_of(llm), "schedule", plan)


def text_of(llm: LLM, session: Session) -> list[int]:
    """What the core keeps of an idle session, in token ids."""
    kept = core_of(llm).table.sessions.get(session.session_id)
    assert kept is not None
    assert kept.turn is None
    return list(kept.context.token_ids)


def test_a_stream_is_interrupted_after_the_step_and_loses_no_token(llm: LLM) -> None:
    with llm.session() as session:
        session.append("first", DELTA)
        with ctrl_c(llm, 1), pytest.raises(KeyboardInterrupt):
            next(session.stream())
        said = [token for output in session.stream() for token in tokens_of(output)]
    with llm.session() as session:
        assert said == tokens_of(session.generate("first", GREEDY))


def test_a_turn_that_is_waited_for_ends_there_and_what_was_said_stays(llm: LLM) -> None:
    with llm.session() as session:
        first = session.generate("a beginning", GREEDY)
        with ctrl_c(llm, 6), pytest.raises(KeyboardInterrupt):
            session.generate("and more", LONG)
        assert not llm.engine.has_unfinished_requests()
        text = text_of(llm, session)
        last = session.generate("the end", GREEDY)
    before = [*first.prompt_token_ids, *tokens_of(first)[:-1], *b"and more"]
    num_said = len(text) - len(before)
    assert 2 <= num_said <= 5, "with what a step in flight would have said, or without"
    assert text == [*before, *at_once(llm, before, LONG)[:num_said]]
    assert tokens_of(last) == at_once(llm, [*text, *last.prompt_token_ids], GREEDY)
    assert_idle(llm)


def test_a_turn_may_be_ended_while_its_prompt_runs(tiny_model: Path) -> None:
    llm = make_llm(tiny_model, max_num_batched_tokens=8)
    with llm.session() as session:
        with ctrl_c(llm, 2), pytest.raises(KeyboardInterrupt):
            session.generate("x" * 40, GREEDY)
        assert text_of(llm, session) == list(b"x" * 40)
        last = session.generate("y", GREEDY)
    assert tokens_of(last) == at_once(llm, list(b"x" * 40 + b"y"), GREEDY)
    assert_idle(llm)


def test_turns_that_were_to_come_are_dropped_with_it(llm: LLM) -> None:
    with llm.session() as session:
        for prompt in ("first", "second"):
            session.append(prompt, LONG)
        with ctrl_c(llm, 4), pytest.raises(KeyboardInterrupt):
            session.generate("third", GREEDY)
        assert list(session.stream()) == []
        text = text_of(llm, session)
        assert text == [*b"first", *at_once(llm, b"first", LONG)[: len(text) - 5]]
        last = session.generate("fourth", GREEDY)
    assert last.prompt == "fourth"
    assert tokens_of(last) == at_once(llm, [*text, *b"fourth"], GREEDY)


def test_an_answer_that_was_complete_is_not_given_out_later(llm: LLM) -> None:
    with llm.session() as session:
        with ctrl_c(llm, 1), pytest.raises(KeyboardInterrupt):
            session.generate("first", SHORT)
        assert list(session.stream()) == []
        assert session.generate("second", GREEDY).prompt == "second"


# ----------------------------------------------------------------------------------------- a second Ctrl-C


def broken_off(llm: LLM, place: str) -> AbstractContextManager[None]:
    """Ctrl-C, twice, in the next step."""
    holders = {"schedule": core_of(llm), "process_outputs": llm.engine.output_processor, "step": llm.engine}
    return ctrl_c_at(holders[place], place, times=2)


def assert_has_ended(llm: LLM, session: Session) -> None:
    """An answer that knows nothing of what was said before would be a wrong one. The engine goes on."""
    with pytest.raises(RequestError, match="the session has ended; begin another"):
        session.append("the end", GREEDY)
    assert list(session.stream()) == []
    assert tokens_of(llm.generate("of somebody else", GREEDY, use_tqdm=False)[0])
    assert_idle(llm)


PLACES = pytest.mark.parametrize("place", ["schedule", "process_outputs", "step"])


@PLACES
def test_a_second_ctrl_c_ends_the_session_wherever_in_the_step_it_comes(llm: LLM, place: str) -> None:
    session = llm.session()
    session.generate("a beginning", GREEDY)
    with broken_off(llm, place), pytest.raises(KeyboardInterrupt):
        session.generate("and more", SHORT)
    assert_has_ended(llm, session)


@PLACES
def test_so_it_does_in_a_stream(llm: LLM, place: str) -> None:
    session = llm.session()
    session.append("a beginning", SHORT)
    with broken_off(llm, place), pytest.raises(KeyboardInterrupt):
        next(session.stream())
    assert_has_ended(llm, session)


@PLACES
def test_an_interrupted_step_ends_other_sessions_only_if_they_wait_for_an_answer(
    llm: LLM, place: str
) -> None:
    waiting, idle = llm.session(), llm.session()
    idle.generate("idle", GREEDY)
    waiting.append("a beginning", LONG)
    with broken_off(llm, place), pytest.raises(KeyboardInterrupt):
        llm.generate("of somebody else", GREEDY, use_tqdm=False)
    answer = list(waiting.stream())[-1].outputs[0]
    if place == "step":  # all that it said is in its collectors
        assert answer.finish_reason == "length"
        waiting.close()
    else:
        assert answer.finish_reason == "error"
        assert "a step of the engine was broken off: KeyboardInterrupt" in str(answer.stop_reason)
    assert_has_ended(llm, waiting)
    assert tokens_of(idle.generate("goes on", GREEDY))
    idle.close()


def test_a_second_ctrl_c_while_the_turn_is_stopped_ends_the_session(llm: LLM) -> None:
    session = llm.session()
    with ctrl_c(llm, 2), ctrl_c_at(llm.engine, "stop_requests"), pytest.raises(KeyboardInterrupt):
        session.generate("a beginning", LONG)
    assert_has_ended(llm, session)
