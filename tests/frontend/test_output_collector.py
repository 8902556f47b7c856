"""Outputs that pile up in a collector, and what its caller gets."""

from __future__ import annotations

import pytest

from octavo.errors import RequestError
from octavo.frontend.output_collector import OutputCollector
from octavo.types.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from octavo.types.params import RequestOutputKind


def answer(index: int, text: str, finish_reason: str | None = None) -> CompletionOutput:
    token_ids = list(text.encode())
    logprobs = [{token_id: Logprob(-1.0, 1, chr(token_id))} for token_id in token_ids]
    return CompletionOutput(index, text, token_ids, -1.0 * len(text), logprobs, finish_reason)


def output(*answers: CompletionOutput, finished: bool = False, **fields: object) -> RequestOutput:
    return RequestOutput("id", "prompt", [1], list(answers), finished, RequestMetrics(0.0), **fields)


def test_deltas_that_pile_up_are_merged_answer_by_answer() -> None:
    collector = OutputCollector("id", RequestOutputKind.DELTA)
    told = [None, {98: Logprob(-1.0, 1, "b")}]
    collector.put(output(answer(1, "ab"), results={"prompt_logprobs": told}))
    collector.put(output(answer(0, "x"), answer(1, "c"), num_cached_tokens=3))
    collector.put(output(answer(1, "d", "length"), answer(0, "", "stop"), finished=True))
    merged = collector.get_nowait()
    assert [each.text for each in merged.outputs] == ["x", "abcd"]
    assert [each.token_ids for each in merged.outputs] == [[120], [97, 98, 99, 100]]
    assert [len(each.logprobs) for each in merged.outputs] == [1, 4]
    assert [each.finish_reason for each in merged.outputs] == ["stop", "length"]
    assert merged.prompt_logprobs == told
    assert merged.finished
    assert collector.get_nowait() is None


def test_a_merged_delta_leaves_the_outputs_it_was_made_of_as_they_were() -> None:
    collector = OutputCollector("id", RequestOutputKind.DELTA)
    first = output(answer(0, "a"))
    collector.put(first)
    collector.put(output(answer(0, "b")))
    assert collector.get_nowait().outputs[0].token_ids == [97, 98]
    assert first == output(answer(0, "a"))


def test_deltas_that_are_taken_in_time_stay_apart() -> None:
    collector = OutputCollector("id", RequestOutputKind.DELTA)
    texts = []
    for text in "abc":
        collector.put(output(answer(0, text)))
        texts.append(collector.get_nowait().outputs[0].text)
    assert texts == ["a", "b", "c"]


def test_a_cumulative_output_is_replaced_by_the_newest() -> None:
    collector = OutputCollector("id", RequestOutputKind.CUMULATIVE)
    for text in ("a", "ab", "abc"):
        collector.put(output(answer(0, text)))
    assert collector.get_nowait().outputs[0].text == "abc"
    assert collector.get_nowait() is None


def test_it_knows_when_nothing_more_will_come() -> None:
    collector = OutputCollector("id", RequestOutputKind.DELTA)
    assert not collector.is_ready
    collector.put(output(answer(0, "a")))
    assert (collector.is_ready, collector.is_finished, collector.finish_reason) == (True, False, None)
    collector.put(output(answer(0, "b", "length"), finished=True))
    collector.get_nowait()
    assert (collector.is_ready, collector.is_finished, collector.finish_reason) == (False, True, "length")
    assert not collector.is_rejected


def test_an_error_is_raised_once_after_the_outputs_before_it() -> None:
    collector = OutputCollector("id", RequestOutputKind.DELTA)
    collector.put(output(answer(0, "a")))
    collector.put_error(RequestError("no", "prompt"))
    assert collector.is_rejected
    assert collector.get_nowait().outputs[0].text == "a"
    with pytest.raises(RequestError, match="no"):
        collector.get_nowait()
    assert collector.get_nowait() is None


def test_it_announces_each_time_that_there_is_something_again() -> None:
    ready: list[OutputCollector] = []
    collector = OutputCollector("id", RequestOutputKind.DELTA, ready.append)
    collector.put(output(answer(0, "a")))
    collector.put(output(answer(0, "b")))
    assert ready == [collector]
    collector.get_nowait()
    collector.put(output(answer(0, "c")))
    collector.get_nowait()
    collector.put_error(RequestError("no"))
    assert ready == [collector] * 3
