"""One engine and several threads: who holds it changes it, and all others wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo import LLM
from octavo.errors import RequestError
from octavo.frontend.input_processor import final_only
from octavo.frontend.output_collector import OutputCollector
from octavo.frontend.session import Session
from octavo.types.steps import PauseState
from tests.frontend.tiny_llm import GREEDY, assert_idle, make_llm


@pytest.fixture(scope="module", params=[1, 2], ids=["one step", "two steps in flight"])
def llm(tiny_model: Path, request: pytest.FixtureRequest) -> LLM:
    return make_llm(tiny_model, pipeline_depth=request.param)


def in_another_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_several_threads_may_ask_one_engine(llm: LLM) -> None:
    answers: dict[int, list[str]] = {}

    def ask(number: int) -> None:
        outputs = llm.generate([f"{number} a", f"{number} b"], GREEDY, use_tqdm=False)
        answers[number] = [output.outputs[0].text for output in outputs]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {
        number: [
            output.outputs[0].text
            for output in llm.generate([f"{number} a", f"{number} b"], GREEDY, use_tqdm=False)
        ]
        for number in range(4)
    }


@pytest.mark.parametrize(
    ("ask", "method"),
    [
        (lambda llm: llm.engine.abort_requests("nobody"), "abort_requests"),
        (lambda llm: llm.engine.pause(PauseState.UNPAUSED), "pause"),
        (lambda llm: llm.reset_prefix_cache(), "reset_prefix_cache"),
    ],
    ids=["abort", "pause", "reset"],
)
def test_the_lock_is_held_while_the_core_is_changed(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, ask: Callable[[LLM], object], method: str
) -> None:
    """One in a step, and another thread that ends a session of its own: never both at once."""
    free: list[bool] = []

    def changing(*arguments: object) -> None:
        in_another_thread(lambda: free.append(llm.engine.lock.acquire(blocking=False)))

    monkeypatch.setattr(llm.engine.client, method, changing)
    ask(llm)
    assert free == [False]


def test_a_session_that_is_closed_from_elsewhere_while_it_answers_says_so(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Session._step

    def close_after_a_step(session: Session, turn: OutputCollector) -> None:
        step(session, turn)
        in_another_thread(session.close)

    monkeypatch.setattr(Session, "_step", close_after_a_step)
    session = llm.session()
    session.append("a", GREEDY)
    with pytest.raises(RequestError, match="the session has ended; begin another"):
        session.generate("b", GREEDY)
    session = llm.session()
    session.append("a", final_only(GREEDY))
    assert list(session.stream()) == []
    assert_idle(llm)


def test_an_answer_that_another_thread_has_taken_is_no_end_of_the_session(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = llm.session()
    step = session._step

    def step_and_lose(turn: OutputCollector) -> None:
        step(turn)
        while not turn.is_finished:
            step(turn)
        in_another_thread(lambda: list(session.stream()))

    monkeypatch.setattr(session, "_step", step_and_lose)
    with pytest.raises(RequestError, match="another thread has taken the answer"):
        session.generate("a", GREEDY)
    monkeypatch.undo()
    assert session.generate("b", GREEDY).finished
