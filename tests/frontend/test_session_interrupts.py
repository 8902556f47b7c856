"""Ctrl-C in a session: what becomes of the turn, and of the text."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from octavo import LLM
from octavo.errors import RequestError
from octavo.frontend.session import Session
from octavo.types.params import RequestOutputKind
from octavo.types.steps import SchedulerOutput
from tests.frontend.tiny_llm import GREEDY, assert_idle, at_once, core_of, make_llm, tokens_of

DELTA = msgspec.structs.replace(GREEDY, output_kind=RequestOutputKind.DELTA)
LONG = msgspec.structs.replace(GREEDY, max_tokens=50)


@pytest.fixture(scope="module", params=[1, 2], ids=["one step", "two steps in flight"])
def llm(tiny_model: Path, request: pytest.FixtureRequest) -> LLM:
    return make_llm(tiny_model, pipeline_depth=request.param)


@contextmanager
def ctrl_c(llm: LLM, plan: int, times: int = 1) -> Iterator[None]:
    """Ctrl-C while the step is planned that is the `plan`th from now, counted from 1."""
    core, plans = core_of(llm), []
    schedule = core.schedule

    def interrupted_schedule() -> SchedulerOutput:
        plans.append(1)
        for _ in range(times if len(plans) == plan else 0):
            os.kill(os.getpid(), signal.SIGINT)
        return schedule()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "schedule", interrupted_schedule)
        yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def text_of(llm: LLM, session: Session) -> list[int]:
    """What the core keeps of a session, in token ids."""
    (request,) = (each for name, each in core_of(llm).requests.items() if name.startswith(session.request_id))
    return list(request.token_ids)


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
            session.generate("first", msgspec.structs.replace(GREEDY, max_tokens=1))
        assert list(session.stream()) == []
        assert session.generate("second", GREEDY).prompt == "second"


def test_a_second_ctrl_c_ends_the_session_which_does_not_begin_anew(llm: LLM) -> None:
    """An answer that knows nothing of what was said before would be a wrong one."""
    session = llm.session()
    session.generate("a beginning", GREEDY)
    with ctrl_c(llm, 1, times=2), pytest.raises(KeyboardInterrupt):
        session.generate("and more", GREEDY)
    with pytest.raises(RequestError, match="the session has ended; begin another"):
        session.generate("the end", GREEDY)
    assert [output.outputs[0].finish_reason for output in session.stream()] == ["error"]
    assert_idle(llm)
