from __future__ import annotations

import signal

import pytest

from octavo.cli.loaded_model import Answer, LoadedModel
from octavo.config import EngineConfig
from octavo.errors import RequestError
from octavo.types.outputs import CompletionOutput, RequestMetrics, RequestOutput
from octavo.types.params import SamplingParams
from tests.scripted_program import CONTEXT, ScriptedCore


@pytest.fixture
def loaded(core: ScriptedCore) -> LoadedModel:
    return LoadedModel(EngineConfig(), SamplingParams(max_tokens=None))


def press_ctrl_c_at(core: ScriptedCore, *steps: int) -> None:
    core.before_step = lambda num_tokens: signal.raise_signal(signal.SIGINT) if num_tokens in steps else None


def test_the_text_is_shown_as_it_comes(core: ScriptedCore, loaded: LoadedModel) -> None:
    core.answers = ["Où?"]
    shown: list[tuple[int, str]] = []
    answer = loaded.answer("Hi", lambda piece: shown.append((core.num_sent, piece)))
    assert [piece for _, piece in shown if piece] == ["O", "ù", "?"]
    assert [step for step, piece in shown if piece] == [1, 3, 4]
    assert (answer.text, answer.finish_reason) == ("Où?", "stop")


def test_the_answer_counts_tokens(loaded: LoadedModel) -> None:
    answer = loaded.answer("Hello", lambda piece: None)
    assert answer.num_prompt_tokens == len("Hello")
    assert answer.num_tokens == len("Paris.") + 1  # the end token is one
    assert not answer.interrupted


def test_ctrl_c_ends_the_answer_after_the_step_and_leaves_the_session_usable(
    core: ScriptedCore, loaded: LoadedModel
) -> None:
    core.answers = ["Paris.", "Rome."]
    press_ctrl_c_at(core, 2)
    announced: list[int] = []
    answer = loaded.answer("Hi", lambda piece: None, lambda: announced.append(core.num_sent))
    assert announced == [2]  # when it came, before the step's end
    assert answer.interrupted
    assert answer.text == "Par"  # the step under way was finished
    assert core.aborted == [core.requests[0].request_id]

    press_ctrl_c_at(core)
    assert loaded.answer("Hi", lambda piece: None).text == "Rome."


def test_a_second_ctrl_c_is_not_held_back(core: ScriptedCore, loaded: LoadedModel) -> None:
    def press_twice(num_tokens: int) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    core.before_step = press_twice
    with pytest.raises(KeyboardInterrupt):
        loaded.answer("Hi", lambda piece: None)


def test_the_handling_of_ctrl_c_is_restored(loaded: LoadedModel) -> None:
    before = signal.getsignal(signal.SIGINT)
    loaded.answer("Hi", lambda piece: None)
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_that_is_ignored_stays_ignored(core: ScriptedCore, loaded: LoadedModel) -> None:
    press_ctrl_c_at(core, 2)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert loaded.answer("Hi", lambda piece: None).text == "Paris."
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_prompt_that_cannot_be_answered_is_refused_before_anything_runs(
    core: ScriptedCore, loaded: LoadedModel
) -> None:
    with pytest.raises(RequestError, match="context"):
        loaded.answer("x" * CONTEXT, lambda piece: None)
    assert core.requests == []


def make_output(num_tokens: int, num_cached_tokens: int = 0) -> RequestOutput:
    new = CompletionOutput(0, "x" * num_tokens, [1] * num_tokens)
    metrics = RequestMetrics(0.0)
    return RequestOutput("answer", None, [1] * 40, [new], False, metrics, num_cached_tokens=num_cached_tokens)


def test_speeds_are_of_computed_prompt_tokens_and_of_tokens_after_the_first() -> None:
    answer = Answer()
    answer.add(make_output(1, num_cached_tokens=30), elapsed_s=0.5)
    assert answer.prompt_speed == 20
    assert answer.speed is None  # one token is no interval
    answer.add(make_output(1), elapsed_s=1.0)
    answer.add(make_output(2), elapsed_s=2.0)
    assert answer.speed == 2


def test_speeds_are_described_in_a_line() -> None:
    answer = Answer()
    answer.add(make_output(1, num_cached_tokens=30), elapsed_s=0.5)
    answer.add(make_output(8, num_cached_tokens=30), elapsed_s=2.5)
    assert answer.describe_speed() == (
        "prompt: 40 tokens (30 of them cached), 20.0 tokens/s | answer: 9 tokens, 4.0 tokens/s | "
        "first token after 0.50 s"
    )
    assert Answer().describe_speed() == "prompt: 0 tokens | answer: 0 tokens"
