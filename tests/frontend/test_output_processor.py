"""From the core's news to the user's outputs: kinds of output, intervals, ends, aborts."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from octavo.errors import RequestError
from octavo.frontend.input_processor import InputProcessor
from octavo.frontend.output_collector import OutputCollector
from octavo.frontend.output_processor import OutputProcessor
from octavo.frontend.tokenizer import Tokenizer
from octavo.types.outputs import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineInfo,
    FinishReason,
    Rejection,
    RequestOutput,
    SchedulerStats,
)
from octavo.types.params import RequestOutputKind, SamplingParams
from octavo.types.sampling import TokenLogprobs

INFO = EngineInfo(
    model_name="tiny",
    vocab_size=260,
    max_model_len=100,
    max_logprobs=20,
    scheduling_policy="fcfs",
    features=frozenset(),
)


class Conversation:
    """One request, and what the user sees of it as the core produces text."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        info = msgspec.structs.replace(INFO, features=frozenset({"prompt_logprobs"}))
        inputs = InputProcessor(info, tokenizer)
        self.processor = OutputProcessor(tokenizer, inputs.handlers)
        request = inputs.process_inputs("ab", params)
        self.collector = OutputCollector("user-id", params.output_kind)
        self.ids = self.processor.add_request(request, 0.0, self.collector)
        self.stopped: list[str] = []
        self.aborted: list[str] = []

    def says(self, text: str, finish: FinishReason | None = None, answer: int = 0) -> list[RequestOutput]:
        return self.take(EngineCoreOutput(self.ids[answer], list(text.encode()), finish))

    def take(self, output: EngineCoreOutput) -> list[RequestOutput]:
        messages = self.processor.process_outputs(EngineCoreOutputs([output], SchedulerStats(0, 0, 0.0)))
        self.stopped += messages.request_ids_to_stop
        self.aborted += messages.request_ids_to_abort
        new = self.collector.get_nowait()
        return [] if new is None else [new]


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return Tokenizer.from_folder(tiny_model)


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [answer.text for output in outputs for answer in output.outputs]


def test_delta_outputs_hold_what_is_new(tokenizer: Tokenizer) -> None:
    chat = Conversation(tokenizer, SamplingParams(output_kind=RequestOutputKind.DELTA))
    outputs = [*chat.says("ab"), *chat.says("c"), *chat.says("d", FinishReason.LENGTH)]
    assert texts(outputs) == ["ab", "c", "d"]
    assert [output.outputs[0].token_ids for output in outputs] == [[97, 98], [99], [100]]
    assert [output.finished for output in outputs] == [False, False, True]


def test_cumulative_outputs_hold_everything(tokenizer: Tokenizer) -> None:
    chat = Conversation(tokenizer, SamplingParams(output_kind=RequestOutputKind.CUMULATIVE))
    assert texts([*chat.says("ab"), *chat.says("c")]) == ["ab", "abc"]


def test_final_only_speaks_once_when_all_answers_are_complete(tokenizer: Tokenizer) -> None:
    chat = Conversation(tokenizer, SamplingParams(n=2, output_kind=RequestOutputKind.FINAL_ONLY))
    assert chat.says("a") == []
    assert chat.says("b", FinishReason.LENGTH, answer=1) == []
    (output,) = chat.says("c", FinishReason.LENGTH)
    assert [(answer.index, answer.text) for answer in output.outputs] == [(0, "ac"), (1, "b")]
    assert output.finished


def test_a_stream_interval_gathers_tokens_but_never_the_first_or_the_last(tokenizer: Tokenizer) -> None:
    params = SamplingParams(output_kind=RequestOutputKind.DELTA, stream_interval=3)
    chat = Conversation(tokenizer, params)
    seen = [texts(chat.says(letter)) for letter in "abcdefg"] + [texts(chat.says("h", FinishReason.LENGTH))]
    assert seen == [["a"], [], [], ["bcd"], [], [], ["efg"], ["h"]]


def test_a_stop_string_ends_the_request_and_tells_the_core(tokenizer: Tokenizer) -> None:
    chat = Conversation(tokenizer, SamplingParams(stop=["END"], output_kind=RequestOutputKind.DELTA))
    outputs = [*chat.says("one E"), *chat.says("N"), *chat.says("D and more")]
    assert "".join(texts(outputs)) == "one "
    assert chat.stopped == chat.ids
    last = outputs[-1].outputs[0]
    assert (last.finish_reason, last.stop_reason) == ("stop", "END")
    # Tokens after the one that completed the stop string are no part of the answer.
    assert [i for output in outputs for i in output.outputs[0].token_ids] == list(b"one END")
    assert not chat.processor.has_unfinished_requests()
    assert chat.says("news of a request that is over") == []


def test_a_stop_string_in_the_core_s_last_news_needs_no_abort(tokenizer: Tokenizer) -> None:
    chat = Conversation(tokenizer, SamplingParams(stop=["END"]))
    chat.says("the END", FinishReason.LENGTH)
    assert chat.stopped == []


def test_text_held_back_for_a_stop_string_comes_out_at_the_end(tokenizer: Tokenizer) -> None:
    chat = Conversation(tokenizer, SamplingParams(stop=["ababab#"], output_kind=RequestOutputKind.DELTA))
    outputs = [output for _ in range(3) for output in chat.says("ab")] + chat.says("ab", FinishReason.LENGTH)
    assert "".join(texts(outputs)) == "abababab"
    assert outputs[-1].outputs[0].finish_reason == "length"


def test_aborting_by_the_user_s_id_forgets_every_request_of_that_id(tokenizer: Tokenizer) -> None:
    processor = OutputProcessor(tokenizer)
    request = InputProcessor(INFO, tokenizer).process_inputs("prompt", SamplingParams(n=2))
    collectors = [OutputCollector("same", RequestOutputKind.CUMULATIVE) for _ in range(2)]
    ids = [core_id for each in collectors for core_id in processor.add_request(request, 0.0, each)]
    assert len(set(ids)) == 4
    assert sorted(processor.forget_requests(["same", "unknown"])) == sorted(ids)
    assert not processor.has_unfinished_requests()


def test_errors_reach_the_user_with_their_reason(tokenizer: Tokenizer) -> None:
    chat = Conversation(tokenizer, SamplingParams())
    (output,) = chat.take(EngineCoreOutput(chat.ids[0], [], FinishReason.ERROR, "out of luck"))
    answer = output.outputs[0]
    assert (answer.finish_reason, answer.stop_reason, answer.text) == ("error", "out of luck", "")


def test_a_rejection_of_one_answer_is_raised_and_the_others_are_aborted(tokenizer: Tokenizer) -> None:
    chat = Conversation(tokenizer, SamplingParams(n=3))
    chat.says("a", answer=0)
    rejection = Rejection("too hasty", "deadline_s")
    output = EngineCoreOutput(chat.ids[1], [], FinishReason.ERROR, rejection.message, rejection=rejection)
    with pytest.raises(RequestError, match="too hasty") as raised:
        chat.take(output)
    assert raised.value.param == "deadline_s"
    assert chat.aborted == chat.ids
    assert chat.collector.is_rejected
    assert not chat.processor.has_unfinished_requests()
    assert chat.says("of a request that was rejected", answer=2) == []


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_what_is_broken_off_ends_with_an_error_and_keeps_what_was_said(
    tokenizer: Tokenizer, kind: RequestOutputKind
) -> None:
    chat = Conversation(tokenizer, SamplingParams(n=2, output_kind=kind))
    outputs = [*chat.says("ab"), *chat.says("c", FinishReason.LENGTH, answer=1)]
    assert chat.processor.fail_all("a bad day") == chat.ids[:1]
    last = chat.collector.get_nowait()
    assert last.finished
    failed = last.outputs[0]
    assert (failed.index, failed.finish_reason, failed.stop_reason) == (0, "error", "a bad day")
    delta = kind is RequestOutputKind.DELTA
    assert failed.text == ("" if delta else "ab")
    assert len(outputs) == (0 if kind is RequestOutputKind.FINAL_ONLY else 2)
    assert not chat.processor.has_unfinished_requests()


def test_results_of_features_come_once_in_deltas_whichever_answer_has_them(tokenizer: Tokenizer) -> None:
    params = SamplingParams(n=2, prompt_logprobs=0, output_kind=RequestOutputKind.DELTA)
    chat = Conversation(tokenizer, params)
    first, second = chat.ids
    logprobs = [TokenLogprobs([98], [-1.0], 1)]
    outputs = [
        EngineCoreOutput(second, [99]),
        EngineCoreOutput(first, [99], results={"prompt_logprobs": logprobs}),
        EngineCoreOutput(first, [99]),
    ]
    told = [made.prompt_logprobs for output in outputs for made in chat.take(output)]
    assert [entries and len(entries) for entries in told] == [None, 2, None]
    assert told[1][0] is None  # nothing precedes the first token
    assert list(told[1][1]) == [98]
