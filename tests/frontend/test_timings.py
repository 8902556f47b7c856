"""When things happened to a request, from events and tokens to `RequestOutput.metrics`."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.frontend.input_processor import InputProcessor
from octavo.frontend.output_collector import OutputCollector
from octavo.frontend.output_processor import OutputProcessor
from octavo.frontend.tokenizer import Tokenizer
from octavo.types.outputs import (
    EngineCoreEvent,
    EngineCoreEventType,
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    RequestMetrics,
    RequestOutput,
)
from octavo.types.params import RequestOutputKind, SamplingParams
from tests.engine.observed import Clock
from tests.frontend.test_output_processor import INFO

QUEUED, SCHEDULED, PREEMPTED = EngineCoreEventType


class Timed:
    """A request that arrives at 1000 s since the epoch, when the core's clock shows 10 s."""

    def __init__(self, tokenizer: Tokenizer, n: int = 1, **params: object) -> None:
        self.clock = Clock(10.0)
        self.processor = OutputProcessor(tokenizer, clock=self.clock)
        given = SamplingParams(n=n, output_kind=RequestOutputKind.DELTA, **params)
        request = InputProcessor(INFO, tokenizer).process_inputs("prompt", given)
        self.collector = OutputCollector("user-id", RequestOutputKind.DELTA)
        self.ids = self.processor.add_request(request, 1000.0, self.collector)
        self.events: dict[str, list[EngineCoreEvent]] = {}

    def happens(self, kind: EngineCoreEventType, now: float, answer: int = 0) -> None:
        self.events.setdefault(self.ids[answer], []).append(EngineCoreEvent(kind, now))

    def step(self, now: float | None, *news: EngineCoreOutput) -> list[RequestOutput]:
        outputs = EngineCoreOutputs(list(news), events=self.events, timestamp=now)
        self.events = {}
        self.processor.process_outputs(outputs)
        output = self.collector.get_nowait()
        return [] if output is None else [output]

    def says(
        self, now: float | None, text: str, finish: FinishReason | None = None, answer: int = 0
    ) -> RequestMetrics:
        (output,) = self.step(now, EngineCoreOutput(self.ids[answer], list(text.encode()), finish))
        return output.metrics


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return Tokenizer.from_folder(tiny_model)


def test_every_moment_is_told_in_seconds_since_the_epoch(tokenizer: Tokenizer) -> None:
    timed = Timed(tokenizer)
    timed.happens(QUEUED, 10.5)
    timed.step(11.0)
    timed.happens(SCHEDULED, 12.0)
    assert timed.says(14.0, "a") == RequestMetrics(1000.0, 1000.5, 1002.0, 1004.0, 1004.0)
    timed.happens(PREEMPTED, 15.0)
    timed.step(15.5)
    timed.happens(SCHEDULED, 16.0)
    timed.says(18.0, "b")
    timed.clock.now = 20.5
    metrics = timed.says(20.0, "c", FinishReason.LENGTH)
    assert metrics == RequestMetrics(1000.0, 1000.5, 1002.0, 1004.0, 1010.0, 1010.5, 1, 3.0)
    assert metrics.time_to_first_token == 4.0
    assert metrics.queue_time == 1.5
    assert metrics.prefill_time == 2.0
    assert metrics.decode_time == 6.0
    assert metrics.mean_inter_token_time == 3.0


def test_tokens_that_come_together_are_apart_by_nothing(tokenizer: Tokenizer) -> None:
    timed = Timed(tokenizer)
    assert timed.says(14.0, "ab").mean_inter_token_time == 0.0
    assert timed.says(17.0, "cd").mean_inter_token_time == 1.0


def test_what_has_not_happened_has_no_time(tokenizer: Tokenizer) -> None:
    timed = Timed(tokenizer)
    timed.clock.now = 13.0
    (output,) = timed.step(12.0, EngineCoreOutput(timed.ids[0], [], FinishReason.ERROR, "out of luck"))
    metrics = output.metrics
    assert metrics == RequestMetrics(1000.0, finished_time=1003.0)
    assert metrics.time_to_first_token is None
    assert metrics.queue_time is None
    assert metrics.prefill_time is None
    assert metrics.decode_time is None


def test_without_observers_the_front_end_s_own_clock_serves(tokenizer: Tokenizer) -> None:
    timed = Timed(tokenizer)
    timed.clock.now = 14.0
    assert timed.says(None, "a").time_to_first_token == 4.0


def test_tokens_after_a_stop_string_did_not_come(tokenizer: Tokenizer) -> None:
    timed = Timed(tokenizer, stop=["b"])
    timed.says(14.0, "a")
    assert timed.says(16.0, "bcd").mean_inter_token_time == 2.0


def test_several_answers_have_the_first_of_the_firsts_and_the_last_of_the_lasts(tokenizer: Tokenizer) -> None:
    timed = Timed(tokenizer, n=2)
    for answer in (1, 0):
        timed.happens(QUEUED, 11.0 - answer / 2, answer)
        timed.happens(SCHEDULED, 13.0 - answer, answer)
    timed.happens(PREEMPTED, 13.5, 0)
    timed.happens(PREEMPTED, 13.5, 1)
    timed.says(14.0, "a", answer=1)
    timed.says(20.0, "a", answer=0)
    timed.says(21.0, "b", FinishReason.LENGTH, answer=0)
    timed.clock.now = 24.0
    metrics = timed.says(23.0, "b", FinishReason.LENGTH, answer=1)
    # A second between the tokens of one answer, nine between those of the other.
    assert metrics == RequestMetrics(1000.0, 1000.5, 1002.0, 1004.0, 1013.0, 1014.0, 2, 5.0)


def test_metrics_that_were_given_out_do_not_change(tokenizer: Tokenizer) -> None:
    timed = Timed(tokenizer)
    before = timed.says(14.0, "a")
    timed.says(17.0, "b")
    assert before.last_token_time == 1004.0


def test_events_of_a_request_that_is_over_are_passed_over(tokenizer: Tokenizer) -> None:
    timed = Timed(tokenizer)
    timed.says(14.0, "a", FinishReason.LENGTH)
    timed.happens(PREEMPTED, 15.0)
    assert timed.step(16.0) == []
