"""Steps in flight: with any number of them everyone gets the same."""

from __future__ import annotations

import pytest

from octavo.engine.executor import InprocExecutor
from octavo.scheduler.request import Request
from octavo.types.observer import ObservedRequest, Observer
from octavo.types.outputs import EngineCoreOutput, FinishReason
from octavo.types.requests import EngineCoreRequest
from tests.engine.pipelined import DEPTHS, IN_FLIGHT, a_request, add, assert_nothing_is_left, due, plans_of
from tests.fakes import make_core, make_params, make_request, run_to_end, tokens_of

# ------------------------------------------------------------------------------------------------ the same


@DEPTHS
@pytest.mark.parametrize(
    "settings",
    [
        {"num_blocks": 100},
        {"num_blocks": 100, "max_num_batched_tokens": 4},
        {"num_blocks": 9},
        {"num_blocks": 9, "enable_caching": False, "max_num_batched_tokens": 4},
        {"num_blocks": 100, "max_num_seqs": 2},
        {"num_blocks": 100, "max_model_len": 100, "enable_chunked_prefill": False},
    ],
    ids=["roomy", "chunked", "preempted", "recomputed", "in turn", "whole prompts"],
)
def test_all_requests_get_the_same_tokens_at_any_depth(depth: int, settings: dict[str, int]) -> None:
    core = make_core(**settings, pipeline_depth=depth)
    requests = [a_request(name, 3 + 2 * n, 12) for n, name in enumerate("abcd")]
    for request in requests:
        core.add_request(request)
    news = run_to_end(core)
    for request in requests:
        mine = news[request.request_id]
        assert tokens_of(mine) == due(request)
        assert [output.finish_reason for output in mine] == [None] * 11 + [FinishReason.LENGTH]
    assert_nothing_is_left(core)


@DEPTHS
def test_so_many_steps_are_in_flight_and_results_come_in_the_order_of_the_plans(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    core.add_request(a_request("a"))
    got: list[int] = []
    for number in range(1, 4):
        got += tokens_of(core.step().outputs)
        assert len(plans_of(core)) == number + depth - 1
    assert got == due(a_request("a"))[:3]


@IN_FLIGHT
def test_the_next_step_is_planned_before_the_token_it_runs_is_known(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    core.add_request(a_request("a"))
    core.step()
    assert [plan.num_scheduled_tokens for plan in plans_of(core)] == [{"a": 6}] + [{"a": 1}] * (depth - 1)
    assert core.scheduler.requests["a"].num_output_tokens == 1


@DEPTHS
def test_no_token_runs_that_is_known_to_come_after_the_end(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    core.add_request(a_request("a", 6, 4))
    run_to_end(core)
    assert sum(plan.total_num_scheduled_tokens for plan in plans_of(core)) == 6 + 3


@DEPTHS
def test_an_observer_of_an_end_sees_every_token(depth: int) -> None:
    lengths = []

    class Lengths(Observer):
        def request_finished(self, request: ObservedRequest) -> None:
            lengths.append(request.num_tokens)

    core = make_core(100, pipeline_depth=depth)
    core.scheduler.table.observer = Lengths()
    core.add_request(a_request("a", 6, 4))
    run_to_end(core)
    assert lengths == [6 + 4]


@DEPTHS
def test_a_token_is_told_as_soon_as_its_step_is_through(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    core.add_request(a_request("a"))
    assert [tokens_of(core.step().outputs) for _ in range(6)] == [[token] for token in due(a_request("a"))]


# --------------------------------------------------------------------------------------- ends while in flight


class Preemptions(Observer):
    """How many tokens were on their way to each request that was preempted."""

    def __init__(self) -> None:
        self.num_tokens_on_their_way: list[int] = []

    def request_preempted(self, request: ObservedRequest) -> None:
        assert isinstance(request, Request)
        self.num_tokens_on_their_way.append(request.num_output_placeholders)


def ending_request() -> EngineCoreRequest:
    """A request that ends before its length, by a token that nobody could foresee."""
    params = make_params(50, ignore_eos=True, stop_token_ids=tuple(range(10)))
    return next(
        request
        for request in (make_request("e", [seed, 2, 3], params) for seed in range(1, 100))
        if len(due(request)) == 4
    )


@IN_FLIGHT
def test_steps_after_a_token_that_ends_the_request_are_void(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    request = ending_request()
    core.add_request(request)
    other = a_request("b", 6, 12)
    core.add_request(other)
    news = run_to_end(core)
    assert tokens_of(news["e"]) == due(request)
    assert news["e"][-1].finish_reason is FinishReason.STOP
    assert tokens_of(news["b"]) == due(other)
    assert sum("e" in plan.num_scheduled_tokens for plan in plans_of(core)) > len(due(request))
    assert_nothing_is_left(core)


@IN_FLIGHT
def test_another_request_may_have_the_row_blocks_and_name_of_one_with_a_step_in_flight(depth: int) -> None:
    core = make_core(4, max_num_seqs=1, pipeline_depth=depth)
    core.add_request(a_request("a", 9, 20))
    core.step()
    core.abort_requests(["a"])
    again = make_request("a", [7] * 10, make_params(2, ignore_eos=True))
    core.add_request(again)
    assert tokens_of(run_to_end(core)["a"]) == due(again)
    assert_nothing_is_left(core)


@IN_FLIGHT
def test_an_abort_voids_what_is_in_flight(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    requests = add(core, "ab")
    first = core.step().outputs
    assert [output.finish_reason for output in core.abort_requests(["a"])] == [FinishReason.ABORT]
    core.check()
    news = run_to_end(core)
    assert list(news) == ["b"]
    assert tokens_of([first[1], *news["b"]]) == due(requests[1])
    assert_nothing_is_left(core)


@IN_FLIGHT
def test_a_preempted_request_gets_its_tokens_in_flight_once(depth: int) -> None:
    core = make_core(7, pipeline_depth=depth)
    requests = [a_request(name, 7, 12) for name in "ab"]
    for request in requests:
        core.add_request(request)
    core.scheduler.table.observer = preemptions = Preemptions()
    news = run_to_end(core)
    assert any(preemptions.num_tokens_on_their_way)
    for request in requests:
        assert tokens_of(news[request.request_id]) == due(request)


@DEPTHS
def test_requests_preempted_with_tokens_in_flight_return_before_others_begin(depth: int) -> None:
    core = make_core(100, max_num_seqs=2, pipeline_depth=depth)
    add(core, "abcd")
    core.step()
    core.scheduler.table.preempt_all()
    run_to_end(core)
    admitted = [request.req_id for plan in plans_of(core) for request in plan.scheduled_new_reqs]
    assert admitted == [*"ab", *"ab", *"cd"]


@IN_FLIGHT
def test_a_token_on_its_way_may_end_the_request_that_was_preempted(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    request = ending_request()
    core.add_request(request)
    got: list[int] = []
    while len(got) < len(due(request)) - 1:
        got += tokens_of(core.step().outputs)
    core.scheduler.table.preempt_all()
    core.check()
    (last,) = core.step().outputs
    assert (got + last.new_token_ids, last.finish_reason) == (due(request), FinishReason.STOP)
    assert_nothing_is_left(core)


@DEPTHS
def test_resetting_the_cache_under_running_requests_keeps_every_token(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth, max_num_batched_tokens=8)
    requests = [a_request(name, 3 + 4 * n, 10) for n, name in enumerate("abc")]
    for request in requests:
        core.add_request(request)
    news: list[EngineCoreOutput] = []
    for number in range(12):
        news += core.step().outputs
        if number % 3 == 2:
            assert core.scheduler.running
            assert not core.reset_prefix_cache()
            assert core.reset_prefix_cache(reset_running_requests=True)
            assert core.scheduler.kv_cache.usage == 0
        core.check()
    for rest in run_to_end(core).values():
        news += rest
    for request in requests:
        mine = [output for output in news if output.request_id == request.request_id]
        assert tokens_of(mine) == due(request)
    admitted = [new for plan in plans_of(core) for new in plan.scheduled_new_reqs]
    assert len(admitted) > len(requests)
    assert {new.num_prompt_tokens for new in admitted} == {3, 7, 11}


@DEPTHS
def test_a_reset_in_the_middle_brings_nothing_of_before_back(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    core.add_request(a_request("a", 30, 20))
    core.step()
    assert core.reset_prefix_cache(reset_running_requests=True)
    run_to_end(core)
    admitted = [new for plan in plans_of(core) for new in plan.scheduled_new_reqs]
    assert [new.num_computed_tokens for new in admitted] == [0, 0]


@IN_FLIGHT
@pytest.mark.parametrize("num_blocks", [100, 9], ids=["roomy", "preempted"])
def test_all_requests_get_the_same_tokens_with_a_thread(depth: int, num_blocks: int) -> None:
    core = make_core(num_blocks, pipeline_depth=depth, max_num_batched_tokens=8)
    core.executor = InprocExecutor(core.executor.runner, threaded=True)
    requests = [a_request(name, 3 + 2 * n, 12) for n, name in enumerate("abcd")]
    for request in requests:
        core.add_request(request)
    news = run_to_end(core)
    for request in requests:
        assert tokens_of(news[request.request_id]) == due(request)
    assert not core.has_unfinished_requests()
    while core._in_flight:
        core.step()
    core.step()
    assert_nothing_is_left(core)
