"""Planning: who runs how many tokens, in which order, and what is said about it."""

from __future__ import annotations

import re

import pytest

from octavo.errors import ConfigError
from octavo.scheduler.request import RequestStatus
from octavo.scheduler.scheduler import Scheduler
from octavo.types.outputs import FinishReason, Rejection
from octavo.types.steps import ModelRunnerOutput, SchedulerOutput
from tests.fakes import (
    generate_alone,
    make_core,
    make_kv_config,
    make_params,
    make_request,
    make_scheduler,
    run_to_end,
    tokens_of,
)

FOREVER = make_params(10_000, ignore_eos=True)


def a_scheduler(num_blocks: int = 1000, **settings: object) -> Scheduler:
    return make_scheduler(make_kv_config(num_blocks), **settings)


def add(scheduler: Scheduler, name: str, length: int, **fields: object) -> None:
    """A request whose prompt no other shares a block with."""
    fields = {"params": FOREVER, "arrival_time": float(len(scheduler.requests)), **fields}
    scheduler.add_request(make_request(name, [1000 + sum(map(ord, name)), *range(1, length)], **fields))


def step(scheduler: Scheduler, token_id: int = 9) -> SchedulerOutput:
    """Plan a step and pretend it ran: whoever has all tokens computed samples `token_id`."""
    planned = scheduler.schedule()
    output = planned.output
    done = [
        req_id
        for req_id in output.num_scheduled_tokens
        if scheduler.requests[req_id].num_computed_tokens == scheduler.requests[req_id].num_tokens
    ]
    sampled = {req_id: [token_id] for req_id in done}
    scheduler.update_from_output(planned, ModelRunnerOutput(sampled_token_ids=sampled, logprobs={}))
    scheduler.check()
    return output


def rejection_of(scheduler: Scheduler) -> Rejection:
    """The rejection that is the scheduler's only output; it is taken."""
    (output,) = scheduler.take_outputs(None).outputs
    assert output.finish_reason is FinishReason.ERROR
    assert output.rejection is not None
    return output.rejection


# ---------------------------------------------------------------------------------------------------- budgets


def test_without_requests_nothing_is_planned() -> None:
    output = step(a_scheduler())
    assert output.num_scheduled_tokens == {}
    assert output.total_num_scheduled_tokens == 0
    assert output.num_common_prefix_blocks == [0]


def test_prefill_and_decode_share_a_step() -> None:
    scheduler = a_scheduler(max_num_batched_tokens=64)
    add(scheduler, "a", 10)
    assert step(scheduler).num_scheduled_tokens == {"a": 10}
    add(scheduler, "b", 6)
    assert step(scheduler).num_scheduled_tokens == {"a": 1, "b": 6}


def test_a_prompt_longer_than_the_step_is_spread_over_several() -> None:
    scheduler = a_scheduler(max_num_batched_tokens=64)
    add(scheduler, "a", 150)
    assert [step(scheduler).num_scheduled_tokens["a"] for _ in range(4)] == [64, 64, 22, 1]


def test_running_requests_come_before_waiting_ones() -> None:
    scheduler = a_scheduler(max_num_batched_tokens=8, long_prefill_token_threshold=0)
    for name in "abc":
        add(scheduler, name, 3)
    assert step(scheduler).num_scheduled_tokens == {"a": 3, "b": 3, "c": 2}
    add(scheduler, "d", 20)
    assert step(scheduler).num_scheduled_tokens == {"a": 1, "b": 1, "c": 1, "d": 5}


def test_more_running_requests_than_budget_all_finish() -> None:
    core = make_core(100, max_num_batched_tokens=2, max_num_seqs=8, long_prefill_token_threshold=0)
    requests = [make_request(f"r{n}", [n + 1], make_params(6), arrival_time=float(n)) for n in range(6)]
    for request in requests:
        core.add_request(request)
    news = run_to_end(core)
    for request in requests:
        assert tokens_of(news[request.request_id]) == generate_alone(request, 10_000)[0]


def test_no_more_requests_run_than_there_are_rows() -> None:
    scheduler = a_scheduler(max_num_seqs=2)
    for name in "abc":
        add(scheduler, name, 3)
    output = step(scheduler)
    assert list(output.num_scheduled_tokens) == ["a", "b"]
    assert sorted(request.row for request in output.scheduled_new_reqs) == [0, 1]
    scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    output = step(scheduler)
    assert list(output.num_scheduled_tokens) == ["b", "c"]
    assert output.scheduled_new_reqs[0].row == 0, "the row of the one that left"


def test_a_long_prompt_leaves_half_of_the_step_to_others() -> None:
    scheduler = a_scheduler(max_num_batched_tokens=65)
    add(scheduler, "long", 300)
    assert step(scheduler).num_scheduled_tokens == {"long": 65}, "alone it may have it all"
    add(scheduler, "short", 10)
    assert step(scheduler).num_scheduled_tokens == {"long": 33, "short": 10}
    assert step(scheduler).num_scheduled_tokens == {"long": 33, "short": 1}


def test_a_threshold_of_zero_sets_no_limit() -> None:
    scheduler = a_scheduler(max_num_batched_tokens=64, long_prefill_token_threshold=0)
    add(scheduler, "long", 300)
    add(scheduler, "short", 10)
    assert step(scheduler).num_scheduled_tokens == {"long": 64}


def test_without_chunked_prefill_a_prompt_runs_whole_or_waits() -> None:
    scheduler = a_scheduler(max_num_batched_tokens=20, max_model_len=20, enable_chunked_prefill=False)
    add(scheduler, "a", 12)
    add(scheduler, "b", 9)
    add(scheduler, "c", 2)
    assert step(scheduler).num_scheduled_tokens == {"a": 12}, "c does not overtake b"
    assert step(scheduler).num_scheduled_tokens == {"a": 1, "b": 9, "c": 2}


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 64},
        {"max_num_batched_tokens": 1},
        {"max_num_batched_tokens": 320, "enable_chunked_prefill": False},
    ],
    ids=["chunked", "token by token", "whole"],
)
def test_a_prompt_gets_the_same_tokens_however_it_is_cut(settings: dict[str, object]) -> None:
    core = make_core(100, max_model_len=320, **settings)
    request = make_request("a", range(1, 301), make_params(12, ignore_eos=True))
    core.add_request(request)
    news = run_to_end(core)["a"]
    assert tokens_of(news) == generate_alone(request, 320)[0]


def test_a_short_request_does_not_wait_for_a_long_prompt_to_end() -> None:
    scheduler = a_scheduler(max_num_batched_tokens=64)
    add(scheduler, "long", 2000)
    step(scheduler)
    add(scheduler, "short", 10)
    for _ in range(4):
        step(scheduler)
    assert scheduler.requests["short"].num_output_tokens > 0
    assert scheduler.requests["long"].num_output_tokens == 0


def test_one_row_serves_a_queue_in_turn() -> None:
    core = make_core(50, max_num_seqs=1)
    requests = [make_request(f"r{n}", [n + 1] * 5, make_params(4, ignore_eos=True)) for n in range(5)]
    for request in requests:
        core.add_request(request)
    news = run_to_end(core)
    assert list(news) == [request.request_id for request in requests]
    for request in requests:
        assert tokens_of(news[request.request_id]) == generate_alone(request, 10_000)[0]


# ------------------------------------------------------------------------------------------------------ order


def test_requests_start_by_priority_then_arrival_then_id() -> None:
    scheduler = a_scheduler(max_num_seqs=3, scheduling_policy="priority")
    add(scheduler, "idle", 3, priority=7, arrival_time=0.0)
    add(scheduler, "late", 3, priority=1, arrival_time=9.0)
    add(scheduler, "b", 3, priority=1, arrival_time=1.0)
    add(scheduler, "a", 3, priority=1, arrival_time=1.0)
    assert list(step(scheduler).num_scheduled_tokens) == ["a", "b", "late"]


def test_a_request_that_does_not_fit_is_not_overtaken() -> None:
    scheduler = a_scheduler(num_blocks=8)
    add(scheduler, "a", 8)
    add(scheduler, "large", 20)
    add(scheduler, "small", 2)
    assert list(step(scheduler).num_scheduled_tokens) == ["a"]


# ------------------------------------------------------------------------------------------- what is reported


def test_known_requests_are_described_by_differences() -> None:
    scheduler = a_scheduler()
    add(scheduler, "a", 7)
    first = step(scheduler).scheduled_new_reqs[0]
    assert (first.num_computed_tokens, first.num_prompt_tokens, len(first.token_ids)) == (0, 7, 7)
    assert first.block_ids == ([1, 2],)
    assert step(scheduler).scheduled_cached_reqs.new_block_ids == [None]
    cached = step(scheduler).scheduled_cached_reqs
    assert (cached.req_ids, cached.new_block_ids) == (["a"], [([3],)])


def test_finished_requests_are_reported_to_the_worker_once() -> None:
    scheduler = a_scheduler()
    add(scheduler, "a", 3)
    add(scheduler, "b", 3)
    step(scheduler)
    scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    assert step(scheduler).finished_req_ids == {"a"}
    assert step(scheduler).finished_req_ids == set()


def test_blocks_that_all_running_requests_share_are_counted() -> None:
    scheduler = a_scheduler()
    stem = list(range(1, 10))
    scheduler.add_request(make_request("a", [*stem, 20], FOREVER))
    step(scheduler)
    for tail in (21, 22):
        scheduler.add_request(make_request(f"b{tail}", [*stem, tail], FOREVER))
    assert step(scheduler).num_common_prefix_blocks == [2]
    add(scheduler, "c", 9)
    assert step(scheduler).num_common_prefix_blocks == [0]


def test_stats_count_running_and_waiting_requests_and_cache_usage() -> None:
    scheduler = a_scheduler(num_blocks=11, max_num_seqs=1)
    for name in "abc":
        add(scheduler, name, 10)
    step(scheduler)
    assert (scheduler.num_running, scheduler.num_waiting) == (1, 2)
    assert scheduler.kv_cache.usage == pytest.approx(0.3)


# ------------------------------------------------------------------------------------------- refused requests


def test_a_prompt_must_have_a_token_and_leave_space_for_an_answer() -> None:
    scheduler = a_scheduler(max_model_len=10)
    for length in (0, 10, 11):
        assert not scheduler.add_request(make_request("a", [1] * length))
        rejection = rejection_of(scheduler)
        assert re.search(rf"has {length} tokens.*at most 9\b", rejection.message)
        assert rejection.param == "prompt"
    assert not scheduler.has_unfinished_requests()
    assert scheduler.add_request(make_request("a", [1] * 9))


def test_a_prompt_that_the_cache_can_never_hold_is_refused_at_once() -> None:
    scheduler = a_scheduler(num_blocks=4, max_model_len=1000)
    assert scheduler.max_model_len == 12
    assert not scheduler.add_request(make_request("a", [1] * 12))
    assert re.search(r"at most 11\b", rejection_of(scheduler).message)


def test_an_id_in_use_is_refused_and_its_request_goes_on() -> None:
    scheduler = a_scheduler()
    add(scheduler, "a", 3)
    add(scheduler, "a", 5)
    assert rejection_of(scheduler) == Rejection("request id 'a' is in use", "request_id")
    assert step(scheduler).num_scheduled_tokens == {"a": 3}


# -------------------------------------------------------------------------------------------- end of requests


def test_tokens_after_the_one_that_ends_a_request_are_dropped() -> None:
    scheduler = a_scheduler()
    add(scheduler, "a", 3, params=make_params(stop_token_ids=(7,)))
    planned = scheduler.schedule()
    result = ModelRunnerOutput(sampled_token_ids={"a": [5, 7, 6]}, logprobs={})
    (news,) = scheduler.update_from_output(planned, result).outputs
    assert (news.new_token_ids, news.finish_reason, news.stop_reason) == ([5, 7], FinishReason.STOP, 7)
    scheduler.check()


def test_finish_requests_ends_some_or_all_in_any_state_and_ignores_unknown_ids() -> None:
    scheduler = a_scheduler(max_num_seqs=2)
    for name in "abcd":
        add(scheduler, name, 3)
    step(scheduler)
    ended = scheduler.finish_requests(["d", "nobody", "a", "a"], RequestStatus.FINISHED_ABORTED)
    assert [news.request_id for news in ended] == ["d", "a"]
    assert scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED) == []
    scheduler.check()
    ended = scheduler.finish_requests(None, RequestStatus.FINISHED_ERROR, "because")
    assert {(news.request_id, news.finish_reason, news.stop_reason) for news in ended} == {
        ("b", FinishReason.ERROR, "because"),
        ("c", FinishReason.ERROR, "because"),
    }
    scheduler.check()
    assert not scheduler.has_unfinished_requests()
    assert scheduler.kv_cache.usage == 0


def test_results_of_a_request_that_was_aborted_meanwhile_are_dropped() -> None:
    scheduler = a_scheduler()
    add(scheduler, "a", 3)
    add(scheduler, "b", 3)
    planned = scheduler.schedule()
    scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    result = ModelRunnerOutput(sampled_token_ids={"a": [5], "b": [6]}, logprobs={})
    news = scheduler.update_from_output(planned, result).outputs
    assert [(one.request_id, one.new_token_ids) for one in news] == [("b", [6])]
    scheduler.check()


def test_results_of_an_aborted_request_do_not_go_to_a_new_one_with_its_id() -> None:
    scheduler = a_scheduler()
    add(scheduler, "a", 3)
    planned = scheduler.schedule()
    scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    add(scheduler, "a", 5)
    result = ModelRunnerOutput(sampled_token_ids={"a": [5]}, logprobs={})
    assert scheduler.update_from_output(planned, result).outputs == []
    scheduler.check()
    output = step(scheduler)
    assert output.finished_req_ids == {"a"}
    assert output.num_scheduled_tokens == {"a": 2}, "three of its tokens are in the cache"


def test_a_failed_step_of_an_aborted_request_does_not_end_a_new_one_with_its_id() -> None:
    scheduler = a_scheduler()
    add(scheduler, "a", 3)
    planned = scheduler.schedule()
    scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    add(scheduler, "a", 5)
    scheduler.fail_step(planned, "broken")
    assert scheduler.take_outputs(planned).outputs == []
    assert step(scheduler).num_scheduled_tokens == {"a": 5}


def test_without_chunked_prefill_a_step_must_hold_the_longest_sequence() -> None:
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens is 19; .*at least max_model_len, 20"):
        a_scheduler(max_num_batched_tokens=19, max_model_len=20, enable_chunked_prefill=False)
