"""`LLM.session`: what is said in turns is what would have been said at once."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.errors import EngineDeadError, RequestError
from octavo.frontend.detokenizer import IncrementalDetokenizer
from octavo.frontend.session import Session
from octavo.types.params import RequestOutputKind
from tests.frontend.tiny_llm import GREEDY, at_once, make_llm, tokens_of
from tests.tiny_model import CONTEXT

DELTA = msgspec.structs.replace(GREEDY, output_kind=RequestOutputKind.DELTA)
SEEDED = SamplingParams(temperature=1.0, top_p=0.9, seed=7, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module", params=[1, 2], ids=["one step", "two steps in flight"])
def llm(tiny_model: Path, request: pytest.FixtureRequest) -> LLM:
    return make_llm(tiny_model, pipeline_depth=request.param)


def assert_is_what_is_said_at_once(llm: LLM, session: Session, params: Sequence[SamplingParams]) -> None:
    context: list[int] = []
    said = []
    for number, each in enumerate(params):
        output = session.generate(f"this is number {number}: ", each)
        context += output.prompt_token_ids
        said.append((list(context), output))
        context += tokens_of(output)[:-1]
    for (before, output), each in zip(said, params, strict=True):
        assert tokens_of(output) == at_once(llm, before, each)


@pytest.mark.parametrize(
    "params",
    [
        [GREEDY] * 4,
        [SEEDED, GREEDY, SEEDED],
        [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (1, 30, 1, 2)],
    ],
    ids=["greedy", "seeded", "lengths"],
)
def test_a_session_answers_as_one_request_with_the_same_text(llm: LLM, params: list[SamplingParams]) -> None:
    with llm.session() as session:
        assert_is_what_is_said_at_once(llm, session, params)


def test_a_session_in_small_pieces_says_the_same(tiny_model: Path) -> None:
    llm = make_llm(tiny_model, max_num_batched_tokens=5, num_blocks_override=33)
    with llm.session() as session:
        assert_is_what_is_said_at_once(llm, session, [GREEDY, SEEDED])


def test_a_turn_that_ended_at_a_stop_string_goes_on_after_it(llm: LLM) -> None:
    """What the user saw is cut before the stop string; the context is what was computed."""
    free = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    (whole,) = llm.generate("a beginning", free, use_tqdm=False)
    stop = whole.outputs[0].text[8:11]
    assert stop
    with llm.session() as session:
        first = session.generate("a beginning", msgspec.structs.replace(free, stop=(stop,)))
        assert (first.outputs[0].finish_reason, first.outputs[0].stop_reason) == ("stop", stop)
        second = session.generate("and more", GREEDY)
    context = [*first.prompt_token_ids, *tokens_of(first)[:-1], *second.prompt_token_ids]
    assert tokens_of(second) == at_once(llm, context, GREEDY)


def test_nothing_can_be_asked_of_an_engine_that_is_closed(tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), kv_cache_memory="4MiB")
    session = llm.session()
    session.append("x", SamplingParams(max_tokens=50, ignore_eos=True))
    outputs = session.stream()
    next(outputs)
    llm.close()
    with pytest.raises(EngineDeadError, match="has been closed"):
        next(outputs)
    for ask in (llm.generate, session.generate):
        with pytest.raises(EngineDeadError, match="has been closed"):
            ask("x", GREEDY)


def test_parameters_of_another_kind_are_refused_by_name(llm: LLM) -> None:
    with (
        llm.session() as session,
        pytest.raises(RequestError, match="sampling_params holds a dict; it must be"),
    ):
        session.generate("x", {"temperature": 0})


@pytest.mark.parametrize(
    "prompts", [["a", "b"], ["a"], [[1, 2], [3]], [{"prompt": "a"}], ("a", "b"), [1, "a"]]
)
def test_a_list_of_prompts_is_refused(llm: LLM, prompts: Any) -> None:
    with llm.session() as session, pytest.raises(RequestError, match="takes one prompt a turn") as raised:
        session.generate(prompts, GREEDY)
    assert raised.value.param == "prompt"
    assert_nothing_is_left(llm)


def test_a_prompt_may_be_token_ids(llm: LLM) -> None:
    ids = list(b"ab")
    for prompt in (ids, tuple(ids), np.array(ids), {"prompt_token_ids": ids}):
        with llm.session() as session:
            assert session.generate(prompt, GREEDY).prompt_token_ids == ids


def test_a_session_that_is_dropped_without_a_close_is_ended(llm: LLM) -> None:
    scheduler = llm.engine.client.core.scheduler
    session = llm.session()
    session.generate("x", GREEDY)
    session.append("and a turn that is under way", GREEDY)
    assert len(scheduler.table.sessions) == 1
    del session
    gc.collect()
    llm.generate("y", GREEDY, use_tqdm=False)
    assert not scheduler.table.sessions
    assert_nothing_is_left(llm)


def test_computed_tokens_are_found_in_the_cache(llm: LLM) -> None:
    llm.reset_prefix_cache()
    with llm.session() as session:
        first = session.generate("x" * 40, GREEDY)
        second = session.generate("y", GREEDY)
    assert first.num_cached_tokens == 0
    assert second.num_cached_tokens == len(first.prompt_token_ids) + 5


def test_turns_may_be_appended_before_they_are_streamed(llm: LLM) -> None:
    with llm.session() as session:
        session.append("first", DELTA)
        session.append("second", DELTA)
        outputs = list(session.stream())
        assert list(session.stream()) == []
    assert [output.prompt for output in outputs] == ["first"] * 6 + ["second"] * 6
    assert [output.finished for output in outputs] == ([False] * 5 + [True]) * 2
    with llm.session() as session:
        texts = [session.generate(prompt, GREEDY).outputs[0].text for prompt in ("first", "second")]
    streamed = [
        "".join(output.outputs[0].text for output in outputs if output.prompt == prompt)
        for prompt in ("first", "second")
    ]
    assert streamed == texts


def test_generate_gives_out_its_own_answer_whole_whatever_came_before(llm: LLM) -> None:
    with llm.session() as session:
        session.append("first", DELTA)
        output = session.generate("second", DELTA)
    assert output.prompt == "second"
    assert len(tokens_of(output)) == 6
    assert output.finished


def test_only_the_beginning_has_a_bos(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = llm.engine.tokenizer
    asked: list[bool] = []
    encode = tokenizer.encode

    def encoding(text: str, add_special_tokens: bool = True) -> list[int]:
        asked.append(add_special_tokens)
        return encode(text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(tokenizer, "encode", encoding)
    for _ in range(2):
        with llm.session() as session:
            session.generate("a", GREEDY)
            session.append("b", GREEDY)
            session.generate("c", GREEDY)
    assert asked == [True, False, False] * 2


# --------------------------------------------------------------------------------------------- the end of it


def test_after_its_close_a_session_takes_nothing_and_nothing_of_it_is_left(llm: LLM) -> None:
    session = llm.session()
    session.append("a", GREEDY)
    session.append("b", GREEDY)
    session.close()
    session.close()
    assert list(session.stream()) == []
    with pytest.raises(RequestError, match="the session has ended; begin another"):
        session.append("c", GREEDY)
    assert_nothing_is_left(llm)


def test_closing_a_session_drops_unread_output(llm: LLM) -> None:
    with llm.session() as session:
        session.append("a", GREEDY)
        llm.generate("of somebody else", GREEDY, use_tqdm=False)
    assert list(session.stream()) == []


def assert_nothing_is_left(llm: LLM) -> None:
    scheduler = llm.engine.client.core.scheduler
    assert not llm.engine.has_unfinished_requests()
    assert not scheduler.requests
    assert not scheduler.table.sessions
    assert scheduler.kv_cache.usage == 0
    llm.engine.client.core.check()


def test_a_session_that_never_said_anything_can_be_closed(llm: LLM) -> None:
    with llm.session():
        pass
    assert_nothing_is_left(llm)


def test_a_session_is_closed_when_its_block_is_left_by_an_exception(llm: LLM) -> None:
    def fail() -> None:
        with llm.session() as session:
            session.append("a", GREEDY)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert_nothing_is_left(llm)


def test_an_error_ends_the_session_and_its_turns(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    session = llm.session()
    session.generate("a", GREEDY)
    runner = llm.engine.client.core.executor.runner

    def fail(output: object) -> None:
        raise ValueError("a bad day")

    with monkeypatch.context() as patch:
        patch.setattr(runner, "execute_model", fail)
        session.append("b", GREEDY)
        session.append("c", GREEDY)
        ends = [output.outputs[0].finish_reason for output in session.stream()]
    assert ends == ["error", "error"]
    with pytest.raises(RequestError, match="the session has ended"):
        session.append("d", GREEDY)
    assert_nothing_is_left(llm)


@pytest.mark.parametrize("max_tokens", [1, 6], ids=["in its last news", "before its end"])
def test_text_that_cannot_be_made_ends_the_session_and_its_turns(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, max_tokens: int
) -> None:
    session = llm.session()
    session.generate("a", GREEDY)

    def fail(self: object, *args: object) -> None:
        raise ValueError("a bad day")

    with monkeypatch.context() as patch:
        patch.setattr(IncrementalDetokenizer, "update", fail)
        for prompt in "bcd":
            session.append(prompt, SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True))
        outputs = list(session.stream())
    assert [output.prompt for output in outputs] == ["b", "c", "d"]
    assert [output.outputs[0].finish_reason for output in outputs] == ["error"] * 3
    with pytest.raises(RequestError, match="the session has ended"):
        session.append("e", GREEDY)
    assert_nothing_is_left(llm)


def test_a_turn_that_is_refused_leaves_the_session_as_it_was(llm: LLM) -> None:
    with llm.session() as session, llm.session() as other:
        outputs = [session.generate("a", GREEDY)]
        with pytest.raises(RequestError, match="the prompt is empty"):
            session.append("", GREEDY)
        with pytest.raises(RequestError, match=f"has {CONTEXT - 4} tokens.*of its session") as raised:
            session.generate("x" * (CONTEXT - 4), SamplingParams(max_tokens=1))
        assert raised.value.param == "prompt"
        outputs.append(session.generate("b", GREEDY))
        assert [tokens_of(output) for output in outputs] == [
            tokens_of(other.generate(prompt, GREEDY)) for prompt in "ab"
        ]


def test_turns_behind_one_that_is_rejected_are_rejected_too(llm: LLM) -> None:
    """None may run without what should have been said before it."""
    too_long = "x" * (CONTEXT - 4)
    with llm.session() as session, llm.session() as other:
        outputs = [session.generate("a", GREEDY)]
        for prompt in (too_long, "never", "said"):
            session.append(prompt, SamplingParams(max_tokens=1))
        for message in (
            "of its session",
            "the turn before this one was rejected",
            "the turn before this one",
        ):
            with pytest.raises(RequestError, match=message):
                next(session.stream())
        session.append(too_long, SamplingParams(max_tokens=1))
        with pytest.raises(RequestError, match="the turn before this one was rejected"):
            session.generate("nor this", GREEDY)
        outputs.append(session.generate("b", GREEDY))
        assert [tokens_of(output) for output in outputs] == [
            tokens_of(other.generate(prompt, GREEDY)) for prompt in "ab"
        ]


def test_a_first_turn_that_the_engine_rejects_begins_no_session(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_times = llm.engine.client.core.deadlines._step_times
    monkeypatch.setattr(step_times, "estimate_s", lambda num_tokens, num_steps: float(num_tokens))
    session = llm.session()
    session.append("z" * 40, GREEDY, deadline_s=30)
    session.append("behind it", GREEDY)
    for message in ("deadline_s is 30", "the session has ended"):
        with pytest.raises(RequestError, match=message):
            next(session.stream())
    assert_nothing_is_left(llm)
    first = session.generate("a", GREEDY)
    assert tokens_of(first) == at_once(llm, first.prompt_token_ids, GREEDY)
    session.close()


def test_a_first_turn_that_is_refused_begins_no_session(llm: LLM) -> None:
    session = llm.session()
    with pytest.raises(RequestError, match="a session has one answer to each prompt") as raised:
        session.append("a", SamplingParams(n=2))
    assert raised.value.param == "n"
    assert_nothing_is_left(llm)
    assert len(tokens_of(session.generate("a", GREEDY))) == 6
    session.close()


def test_a_full_context_refuses_a_turn_and_the_session_stays_open(llm: LLM) -> None:
    endless = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    with llm.session() as session:
        output = session.generate("x" * (CONTEXT - 4), endless)
        assert (len(tokens_of(output)), output.outputs[0].finish_reason) == (4, "length")
        with pytest.raises(RequestError, match="at most 0 after the"):
            session.generate("y", GREEDY)
        assert list(session.stream()) == []


# ----------------------------------------------------------------------------------------- beside each other


def test_output_of_a_session_while_others_run_is_not_lost(llm: LLM) -> None:
    with llm.session() as session:
        session.append("said meanwhile", GREEDY)
        (other,) = llm.generate("of somebody else", SEEDED, use_tqdm=False)
        outputs = list(session.stream())
    assert outputs[-1].finished
    assert tokens_of(outputs[-1]) == at_once(llm, outputs[-1].prompt_token_ids, GREEDY)
    assert tokens_of(other) == at_once(llm, other.prompt_token_ids, SEEDED)


def test_sessions_at_the_same_time_have_the_text_of_each_one_alone(llm: LLM) -> None:
    sessions = [llm.session() for _ in range(3)]
    prompts = [[f"session {number}, turn {turn}. " for turn in range(3)] for number in range(3)]
    for turn in range(3):
        for number, session in enumerate(sessions):
            session.append(prompts[number][turn], SEEDED)
    together = [[tokens_of(output) for output in session.stream() if output.finished] for session in sessions]
    for session in sessions:
        session.close()
    for number in range(3):
        with llm.session() as session:
            alone = [tokens_of(session.generate(prompt, SEEDED)) for prompt in prompts[number]]
        assert together[number] == alone
    assert_nothing_is_left(llm)


def test_sessions_share_cached_prefixes_only_within_a_salt(llm: LLM) -> None:
    llm.reset_prefix_cache()
    cached = []
    for salt in (None, "a", "b", "a"):
        with llm.session(cache_salt=salt) as session:
            cached.append(session.generate("x" * 40, GREEDY).num_cached_tokens)
    assert cached == [0, 0, 0, 39]


# ----------------------------------------------------------------------------------- priorities and deadlines


def test_a_session_is_as_urgent_as_it_says(tiny_model: Path) -> None:
    llm = make_llm(tiny_model, scheduling_policy="priority", max_num_seqs=1)
    with llm.session(priority=5) as patient, llm.session(priority=-5) as urgent:
        for turn in ("a", "b"):
            patient.append(turn, GREEDY)
            urgent.append(turn, GREEDY)
            ends = [list(session.stream())[-1].metrics for session in (urgent, patient)]
            assert ends[0].finished_time < ends[1].first_token_time


def test_a_priority_needs_its_policy(llm: LLM) -> None:
    with pytest.raises(RequestError, match="priority is 5; under the fcfs policy it must be 0"):
        llm.session(priority=5)


def test_a_turn_that_cannot_be_done_in_time_is_refused_and_the_session_goes_on(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_times = llm.engine.client.core.deadlines._step_times
    monkeypatch.setattr(step_times, "estimate_s", lambda num_tokens, num_steps: float(num_tokens))
    with llm.session() as session:
        first = session.generate("a", GREEDY, deadline_s=30)
        for needed_s in (35 + 5, 6 + 35 + 5):  # the 6 tokens of before are cached, and then they are not
            session.append("x" * 35, GREEDY, deadline_s=30)
            with pytest.raises(RequestError, match=f"deadline_s is 30, and .* about {needed_s} s at"):
                next(session.stream())
            llm.reset_prefix_cache()
        assert list(session.stream()) == []
        last = session.generate("b", GREEDY, deadline_s=30)
    context = [*first.prompt_token_ids, *tokens_of(first)[:-1], *last.prompt_token_ids]
    assert tokens_of(last) == at_once(llm, context, GREEDY)


def test_a_turn_that_is_not_done_in_time_ends_the_session(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(llm.engine.client.core.deadlines, "_clock", lambda: now)
    session = llm.session()
    session.generate("a", GREEDY, deadline_s=5)
    session.append("b", msgspec.structs.replace(DELTA, max_tokens=100), deadline_s=5)
    outputs = session.stream()
    next(outputs)
    now += 6
    assert [output.outputs[0].stop_reason for output in outputs] == ["the deadline of 5 s has passed"]
    with pytest.raises(RequestError, match="the session has ended"):
        session.append("c", GREEDY)
    assert_nothing_is_left(llm)
