"""When blocks run out: who gives way, that nobody loses a token, and that no work is done for nothing."""

from __future__ import annotations

import pytest

from octavo.engine.core import EngineCore
from octavo.scheduler.request import RequestStatus
from octavo.types.outputs import EngineCoreOutput, FinishReason
from octavo.types.requests import EngineCoreRequest
from octavo.types.steps import SchedulerOutput
from tests.fakes import (
    FakeExecutor,
    generate_alone,
    make_core,
    make_params,
    make_request,
    run_to_end,
    tokens_of,
)


def a_request(name: str, length: int, max_tokens: int, **fields: object) -> EngineCoreRequest:
    prompt = [1000 + sum(map(ord, name)), *range(1, length)]
    return make_request(name, prompt, make_params(max_tokens, ignore_eos=True), **fields)


def plans(core: EngineCore) -> list[SchedulerOutput]:
    executor = core.executor.runner
    assert isinstance(executor, FakeExecutor)
    return executor.outputs


def run(core: EngineCore, requests: list[EngineCoreRequest]) -> dict[str, list[EngineCoreOutput]]:
    """Run `requests` together; everyone must get what it gets alone, every token once."""
    for request in requests:
        core.add_request(request)
    news = run_to_end(core)
    for request in requests:
        due, reason = generate_alone(request, core.scheduler.max_model_len)
        mine = news[request.request_id]
        assert tokens_of(mine) == due
        assert [output.finish_reason for output in mine] == [None] * (len(mine) - 1) + [reason]
        assert mine[-1].num_cached_tokens < len(request.prompt_token_ids)
    assert core.scheduler.kv_cache.usage == 0
    return news


def num_preemptions(core: EngineCore) -> dict[str, int]:
    preempted = [req_id for plan in plans(core) for req_id in plan.preempted_req_ids]
    return {req_id: preempted.count(req_id) for req_id in preempted}


def test_a_request_that_outgrows_the_cache_alone_ends_there_with_all_its_tokens() -> None:
    core = make_core(33, block_size=16)  # 512 tokens
    request = a_request("a", 400, max_tokens=400)
    news = run(core, [request])["a"]
    assert len(tokens_of(news)) == 112
    assert news[-1].finish_reason is FinishReason.LENGTH
    assert num_preemptions(core) == {}


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_the_last_to_arrive_is_preempted_first_and_returns_before_others_begin(policy: str) -> None:
    core = make_core(8, max_num_seqs=8, scheduling_policy=policy)
    run(core, [a_request(name, 7, 10, arrival_time=float(n)) for n, name in enumerate("abcd")])
    assert [req_id for plan in plans(core) for req_id in plan.preempted_req_ids] == ["c", "b"]
    admitted = [request.req_id for plan in plans(core) for request in plan.scheduled_new_reqs]
    assert admitted == [*"abc", *"bc", "d"]


def test_a_step_that_preempts_admits_no_request() -> None:
    core = make_core(8, max_num_seqs=8)
    run(core, [a_request(name, 7, 10, arrival_time=float(n)) for n, name in enumerate("abcdef")])
    preempting = [plan for plan in plans(core) if plan.preempted_req_ids]
    assert preempting
    assert not any(plan.scheduled_new_reqs for plan in preempting)


def test_a_step_that_preempts_admits_not_even_a_request_that_would_fit() -> None:
    core = make_core(9, scheduling_policy="priority")
    core.add_request(a_request("runs", 12, 10, priority=0))
    core.add_request(a_request("gives way", 16, 10, priority=9))
    core.step()
    core.add_request(a_request("waits", 8, 10, priority=5))
    while not plans(core)[-1].preempted_req_ids:
        core.step()
        core.check()
    assert plans(core)[-1].preempted_req_ids == {"gives way"}
    assert list(plans(core)[-1].num_scheduled_tokens) == ["runs"]
    core.step()
    assert list(plans(core)[-1].num_scheduled_tokens) == ["runs", "waits"]


def test_the_step_that_reuses_the_blocks_reports_the_preemption() -> None:
    core = make_core(7)
    for number, name in enumerate("ab"):
        core.add_request(a_request(name, 7, 30, arrival_time=float(number)))
    while not plans(core) or not plans(core)[-1].preempted_req_ids:
        core.step()
        core.check()
    plan = plans(core)[-1]
    assert plan.preempted_req_ids == {"b"}
    assert list(plan.num_scheduled_tokens) == ["a"]
    preempted = core.scheduler.requests["b"]
    assert (preempted.status, preempted.row, preempted.num_computed_tokens) == (
        RequestStatus.PREEMPTED,
        -1,
        0,
    )


def test_the_least_urgent_is_preempted_even_if_it_arrived_first() -> None:
    core = make_core(8, scheduling_policy="priority")
    requests = [
        a_request("low", 7, 12, priority=5, arrival_time=0.0),
        a_request("high", 7, 12, priority=1, arrival_time=1.0),
    ]
    run(core, requests)
    assert num_preemptions(core).keys() == {"low"}


def test_every_running_request_runs_or_is_preempted_while_there_is_budget() -> None:
    core = make_core(9, max_num_seqs=8, scheduling_policy="priority", max_num_batched_tokens=16)
    for number, name in enumerate("abcdef"):
        core.add_request(a_request(name, 5, 14, priority=-number, arrival_time=float(number)))
    while core.has_unfinished_requests():
        running = {request.request_id for request in core.scheduler.running}
        core.step()
        core.check()
        plan = plans(core)[-1]
        assert plan.total_num_scheduled_tokens == sum(plan.num_scheduled_tokens.values())
        if plan.total_num_scheduled_tokens < 16:
            assert running <= plan.num_scheduled_tokens.keys() | plan.preempted_req_ids
    assert num_preemptions(core)


@pytest.mark.parametrize("num_prefills", [2, 3])
def test_long_prompts_that_do_not_fit_together_do_not_thrash(num_prefills: int) -> None:
    requests = [a_request(f"r{n}", 400, 20, arrival_time=float(n)) for n in range(num_prefills)]
    apart = 0
    for request in requests:
        core = make_core(52, block_size=16, max_num_batched_tokens=64)
        run(core, [request])
        apart += len(plans(core))
    together = make_core(52, block_size=16, max_num_batched_tokens=64)  # 816 tokens; two take 840
    run(together, requests)
    assert len(plans(together)) <= 1.2 * apart
    assert all(count <= 3 for count in num_preemptions(together).values())


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize(
    ("length", "max_tokens"), [(500, 20), (350, 150), (100, 400)], ids=["prompts", "both", "answers"]
)
def test_two_long_requests_that_do_not_fit_together_take_little_more_than_one_after_the_other(
    length: int, max_tokens: int, caching: bool, depth: int
) -> None:
    requests = [a_request(f"r{n}", length, max_tokens, arrival_time=float(n)) for n in range(2)]
    settings = {
        "block_size": 16,
        "max_num_batched_tokens": 64,
        "enable_caching": caching,
        "pipeline_depth": depth,
    }
    apart = 0
    for request in requests:
        core = make_core(51, **settings)  # 800 tokens; two take 1000
        run(core, [request])
        apart += len(plans(core))
    together = make_core(51, **settings)
    run(together, requests)
    assert len(plans(together)) <= 1.2 * apart
    assert sum(num_preemptions(together).values()) <= 2


@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
def test_growing_answers_that_do_not_fit_together_do_not_thrash(caching: bool) -> None:
    requests = [a_request(f"r{n}", 40, 150, arrival_time=float(n)) for n in range(4)]
    apart = 0
    for request in requests:
        core = make_core(21, block_size=16, max_num_batched_tokens=64, enable_caching=caching)
        run(core, [request])
        apart += len(plans(core))
    together = make_core(21, block_size=16, max_num_batched_tokens=64, enable_caching=caching)
    run(together, requests)
    assert num_preemptions(together)
    assert len(plans(together)) <= apart, "together is never slower than one after the other"
    assert all(count <= 3 for count in num_preemptions(together).values())


def test_later_urgent_requests_preempt_four_that_fill_the_cache() -> None:
    core = make_core(12, max_num_seqs=4, scheduling_policy="priority")
    slow = [a_request(f"slow{n}", 6, 12, priority=9, arrival_time=float(n)) for n in range(4)]
    for request in slow:
        core.add_request(request)
    early: dict[str, list[int]] = {}
    for _ in range(3):
        for output in core.step().outputs:
            early.setdefault(output.request_id, []).extend(output.new_token_ids)
    urgent = [a_request(f"urgent{n}", 6, 12, priority=0, arrival_time=10.0 + n) for n in range(2)]
    for request in urgent:
        core.add_request(request)
    news = run_to_end(core)
    assert num_preemptions(core)
    assert not num_preemptions(core).keys() & {"urgent0", "urgent1"}
    for request in slow + urgent:
        streamed = early.get(request.request_id, []) + tokens_of(news[request.request_id])
        assert streamed == generate_alone(request, core.scheduler.max_model_len)[0]


def test_what_was_generated_before_a_preemption_still_counts_as_output() -> None:
    """Max_tokens and the prompt's length are what they were."""
    core = make_core(7)
    for number, name in enumerate("ab"):
        core.add_request(a_request(name, 7, 12, arrival_time=float(number)))
    run_to_end(core)
    assert num_preemptions(core)["b"] >= 1
    admissions = [
        request for plan in plans(core) for request in plan.scheduled_new_reqs if request.req_id == "b"
    ]
    assert len(admissions) >= 2
    assert {request.num_prompt_tokens for request in admissions} == {7}
    assert len(admissions[-1].token_ids) > 7


def test_a_preempted_request_can_be_aborted() -> None:
    core = make_core(7)
    for number, name in enumerate("ab"):
        core.add_request(a_request(name, 7, 30, arrival_time=float(number)))
    while core.scheduler.requests["b"].status is not RequestStatus.PREEMPTED:
        core.step()
    (news,) = core.abort_requests(["b"])
    assert news.finish_reason is FinishReason.ABORT
    core.check()
    assert list(run_to_end(core)) == ["a"]
    assert core.scheduler.kv_cache.usage == 0
