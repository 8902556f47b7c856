"""What is counted, once and only once, and that counts that were given out stay what they were."""

from __future__ import annotations

import pytest

from octavo.engine.statistics import NUM_RECENT, Statistics
from octavo.types.outputs import (
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    PrefixCacheStats,
    SchedulerStats,
)
from tests.engine.observed import Seen, State, news, plan


class Observed:
    """An engine's life as `Statistics` sees it."""

    def __init__(self) -> None:
        self.state = State()
        self.statistics = Statistics(self.state)

    def queue(self, *requests: Seen) -> None:
        for request in requests:
            self.statistics.request_queued(request)

    def step(
        self, outputs: list[EngineCoreOutput] | None = None, **num_scheduled_tokens: int
    ) -> SchedulerStats:
        planned = plan(**num_scheduled_tokens)
        self.statistics.step_planned(planned)
        done = EngineCoreOutputs(outputs or [])
        self.statistics.step_done(planned, done)
        assert done.scheduler_stats is not None
        return done.scheduler_stats

    def finish(self, request: Seen, reason: FinishReason | None) -> None:
        request.finish_reason = reason
        self.statistics.request_finished(request)


def test_the_state_is_that_of_the_steps_end() -> None:
    observed = Observed()
    observed.state.num_running, observed.state.num_waiting, observed.state.usage = 3, 2, 0.25
    assert observed.step() == SchedulerStats(3, 2, 0.25)


def test_only_the_first_admission_of_a_request_counts_as_a_query_of_the_prefix_cache() -> None:
    observed, request = Observed(), Seen("a", num_tokens=10)
    observed.queue(request)
    observed.statistics.request_admitted(request, 4)
    observed.statistics.request_preempted(request)
    request.num_tokens = 16
    observed.statistics.request_admitted(request, 12)
    stats = observed.step()
    assert stats.prefix_cache == PrefixCacheStats(1, 10, 4, 1, 16, 12)
    assert stats.num_preemptions == 1
    assert observed.statistics.recent_hit_rate == 0.4


def test_a_next_turn_of_a_session_is_a_query_of_its_own() -> None:
    observed, request = Observed(), Seen("a", num_tokens=10)
    for num_cached in (0, 8):
        observed.queue(request)
        observed.statistics.request_admitted(request, num_cached)
        observed.finish(request, FinishReason.STOP)
    assert observed.step().prefix_cache == PrefixCacheStats(2, 20, 8)


def test_a_request_that_is_queued_again_under_an_id_that_was_aborted_counts() -> None:
    observed = Observed()
    observed.queue(Seen("a"))
    observed.finish(Seen("a"), FinishReason.ABORT)
    observed.queue(Seen("a"))
    observed.statistics.request_admitted(Seen("a"), 0)
    assert observed.step().prefix_cache.requests == 1


def test_prompt_tokens_are_those_computed_chunk_by_chunk_and_those_found() -> None:
    observed, request = Observed(), Seen("a", num_tokens=10)
    observed.queue(request, Seen("waiting"))
    observed.statistics.request_admitted(request, 3)
    counts = [observed.step(a=4), observed.step(), observed.step(a=3), observed.step(a=1)]
    assert [stats.num_computed_prompt_tokens for stats in counts] == [4, 4, 7, 7]
    assert counts[-1].num_prompt_tokens == 10


def test_a_prompt_that_is_interrupted_counts_each_token_once() -> None:
    observed, request = Observed(), Seen("a", num_tokens=10)
    observed.queue(request)
    observed.statistics.request_admitted(request, 0)
    observed.step(a=6)
    observed.statistics.request_preempted(request)
    observed.step()
    observed.statistics.request_admitted(request, 4)
    observed.step(a=6)
    assert observed.step(a=1).num_computed_prompt_tokens == 10


def test_the_prompt_of_a_request_that_ends_in_its_first_step_counts() -> None:
    observed, request = Observed(), Seen("a", num_tokens=10)
    observed.queue(request)
    observed.statistics.request_admitted(request, 0)
    planned = plan(a=10)
    observed.statistics.step_planned(planned)
    observed.finish(request, FinishReason.LENGTH)
    observed.statistics.step_done(planned, done := EngineCoreOutputs(news(a=1)))
    assert done.scheduler_stats is not None
    assert done.scheduler_stats.num_computed_prompt_tokens == 10
    assert done.scheduler_stats.num_generation_tokens == 1


def test_every_end_counts_once_by_its_reason() -> None:
    observed = Observed()
    ends = (
        [FinishReason.STOP] * 5 + [FinishReason.LENGTH] * 5 + [FinishReason.ABORT] * 4 + [FinishReason.ERROR]
    )
    for number, reason in enumerate(ends):
        observed.queue(Seen(str(number)))
        observed.finish(Seen(str(number)), reason)
    assert observed.step().num_finished_reqs == {
        FinishReason.STOP: 5,
        FinishReason.LENGTH: 5,
        FinishReason.ABORT: 4,
        FinishReason.ERROR: 1,
    }


def test_counts_that_were_given_out_do_not_change() -> None:
    observed = Observed()
    before = observed.step()
    observed.queue(Seen("a"))
    observed.statistics.request_admitted(Seen("a"), 5)
    observed.finish(Seen("a"), FinishReason.STOP)
    after = observed.step(news(a=2))
    assert before == SchedulerStats(0, 0, 0.0)
    assert after.num_generation_tokens == 2
    observed.finish(Seen("b"), FinishReason.STOP)
    assert after.num_finished_reqs == {FinishReason.STOP: 1}


def test_the_recent_hit_rate_forgets_all_but_the_last_requests() -> None:
    observed = Observed()
    assert observed.statistics.recent_hit_rate == 0.0
    for number in range(NUM_RECENT + 500):
        observed.queue(Seen(str(number)))
        observed.statistics.request_admitted(Seen(str(number)), 10 if number < 1000 else 0)
    assert observed.statistics.recent_hit_rate == pytest.approx(0.5)
