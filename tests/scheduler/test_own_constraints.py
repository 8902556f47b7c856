"""The scheduler's own constraints: budgets, throttles and shares."""

from __future__ import annotations

import pytest

from octavo.config import SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.kv_cache.kv_cache_manager import KVCacheManager
from octavo.kv_cache.request_blocks import CacheHit
from octavo.scheduler.constraint import create_constraints
from octavo.scheduler.request import Request
from tests.fakes import (
    FakeConstraint,
    generate_alone,
    make_core,
    make_kv_config,
    make_params,
    make_request,
    run_to_end,
    tokens_of,
)
from tests.scheduler.stepping import a_core, add, step


def counts(core: EngineCore) -> dict[str, int]:
    return step(core).num_scheduled_tokens


def in_the_middle(core: EngineCore) -> set[str]:
    """Who runs and has not come to the end of its prompt."""
    return {
        request.request_id
        for request in core.scheduler.running
        if request.num_computed_tokens < request.num_prompt_tokens
    }


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ["LongPrefill", "TokenBudget"]),
        ({"long_prefill_token_threshold": 0}, ["TokenBudget"]),
        ({"enable_chunked_prefill": False}, ["WholePrompts", "TokenBudget"]),
        ({"scheduling_policy": "fair"}, ["LongPrefill", "TenantShare", "TokenBudget"]),
        ({"scheduling_policy": "fair", "enable_chunked_prefill": False}, ["WholePrompts", "TokenBudget"]),
        (
            {"prefill_schedule_interval": 2, "max_num_partial_prefills": 1},
            ["PrefillInterval", "LongPrefill", "TokenBudget", "PartialPrefills"],
        ),
    ],
)
def test_a_configuration_has_the_constraints_it_asks_for(
    settings: dict[str, object], names: list[str]
) -> None:
    kv_cache = KVCacheManager(make_kv_config(10))
    assert [
        type(each).__name__ for each in create_constraints(SchedulerConfig(**settings), kv_cache)
    ] == names


@pytest.mark.parametrize(
    ("kind", "max_chunk", "names"),
    [
        ("window", 8, ["LongPrefill", "TokenBudget", "ChunkLimit"]),
        ("recurrent", 2048, ["LongPrefill", "TokenBudget", "StepAlignment"]),
    ],
)
def test_a_kv_cache_has_the_constraints_it_needs(kind: str, max_chunk: int, names: list[str]) -> None:
    kv_cache = KVCacheManager(make_kv_config(10, kinds=[kind], max_chunk=max_chunk))
    assert [type(each).__name__ for each in create_constraints(SchedulerConfig(), kv_cache)] == names


def test_a_threshold_holds_only_beside_others() -> None:
    core = make_core(1000, max_num_batched_tokens=32, long_prefill_token_threshold=5)
    add(core, "a", length=50)
    assert counts(core) == {"a": 32}
    add(core, "b", length=50)
    assert counts(core) == {"a": 5, "b": 5}


def test_partial_prefills_are_limited_and_short_prompts_still_run() -> None:
    core = make_core(1000, max_num_batched_tokens=16, max_num_partial_prefills=1)
    add(core, "a", "b", length=40)
    add(core, "c", length=4)
    assert counts(core) == {"a": 8, "c": 4}
    assert counts(core) == {"a": 8, "c": 1}
    while in_the_middle(core) == {"a"}:
        step(core)
    assert in_the_middle(core) == {"b"}, "it begins in the step in which a comes to the end"


@pytest.mark.parametrize("most", [1, 2, 3])
def test_there_are_never_more_partial_prefills_than_allowed(most: int) -> None:
    core = make_core(
        1000, max_num_batched_tokens=16, long_prefill_token_threshold=4, max_num_partial_prefills=most
    )
    most_at_once = 0
    for number in range(120):
        if number % 3 == 0:
            name = f"r{number}"
            prompt = [1000 + number, *range(1, 5 + number % 37)]
            core.add_request(make_request(name, prompt, make_params(5, ignore_eos=True)))
        step(core)
        most_at_once = max(most_at_once, len(in_the_middle(core)))
    assert most_at_once == most
    run_to_end(core)


def test_a_prompt_that_is_held_back_for_a_step_is_still_a_partial_prefill() -> None:
    constraint = FakeConstraint()
    core = a_core(constraint, 1000, max_num_batched_tokens=16, max_num_partial_prefills=1)
    add(core, "a", "b", length=40)
    assert counts(core) == {"a": 8}
    constraint.vetoed = {"a"}
    assert counts(core) == {}
    constraint.vetoed = set()
    assert counts(core) == {"a": 8}


def test_recomputation_counts_as_a_partial_prefill() -> None:
    core = make_core(1000, max_num_batched_tokens=16, max_num_partial_prefills=1, enable_caching=False)
    add(core, "a", length=4)
    for _ in range(40):
        step(core)
    core.reset_prefix_cache(reset_running_requests=True)
    add(core, "b", length=40)
    assert counts(core) == {"a": 8}
    assert counts(core) == {"a": 8}, "past its prompt, and not yet where it was"


def test_prompts_run_in_every_nth_step_while_others_decode() -> None:
    core = make_core(1000, max_num_batched_tokens=16, prefill_schedule_interval=3)
    add(core, "a", length=4)
    assert counts(core) == {"a": 4}  # step 0
    add(core, "b", length=20)
    assert [counts(core) for _ in range(6)] == [
        {"a": 1},
        {"a": 1},
        {"a": 1, "b": 8},
        {"a": 1},
        {"a": 1},
        {"a": 1, "b": 8},
    ]


def test_between_two_steps_of_prompts_a_long_queue_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core(1000, prefill_schedule_interval=100, max_num_batched_tokens=16)
    add(core, "a", length=4)
    step(core)
    add(core, *"bcdefgh", length=20)
    looked_at: list[str] = []
    get_computed_blocks = core.scheduler.kv_cache.get_computed_blocks

    def looking(request: Request) -> CacheHit:
        looked_at.append(request.request_id)
        return get_computed_blocks(request)

    monkeypatch.setattr(core.scheduler.kv_cache, "get_computed_blocks", looking)
    assert counts(core) == {"a": 1}
    assert looked_at == ["b"]


def test_prompts_run_in_every_step_while_no_request_decodes() -> None:
    core = make_core(1000, max_num_batched_tokens=16, prefill_schedule_interval=100)
    add(core, "a", length=4)
    step(core)
    core.abort_requests(["a"])
    add(core, "b", length=40)
    assert [counts(core) for _ in range(3)] == [{"b": 16}, {"b": 16}, {"b": 8}]


def test_recomputation_waits_for_the_prefill_interval_too() -> None:
    core = make_core(1000, max_num_batched_tokens=64, prefill_schedule_interval=30, enable_caching=False)
    add(core, "a", "b", length=2)
    for _ in range(20):
        step(core)
    core.scheduler.table.preempt(core.scheduler.running[-1])
    assert [counts(core) for _ in range(10)] == [{"a": 1}] * 10
    assert counts(core) == {"a": 1, "b": 22}


def test_admission_leaves_a_share_of_the_cache_to_running_requests() -> None:
    core = make_core(11, watermark=0.3)  # 10 blocks, 3 of them left free
    add(core, "a", length=12)
    assert counts(core) == {"a": 12}
    add(core, "b", length=15)
    assert counts(core) == {"a": 1}, "4 more of the 6 that are left would be too many"
    add(core, "c", length=3)
    assert counts(core) == {"a": 1}, "and nobody overtakes"
    core.abort_requests(["b"])
    assert counts(core) == {"a": 1, "c": 3}


def test_an_empty_engine_admits_every_request_that_fits() -> None:
    core = make_core(11, watermark=0.9)
    add(core, "a", length=36)
    assert counts(core) == {"a": 36}


def add_for(core: EngineCore, tenant: str, *names: str, length: int) -> None:
    add(core, *names, length=length, tenant=tenant)


def test_beside_the_prompt_of_one_tenant_those_of_another_run_as_many_tokens() -> None:
    core = make_core(1000, max_num_batched_tokens=64, scheduling_policy="fair")
    add_for(core, "x", "a", length=20)
    add_for(core, "y", "b", "c", length=30)
    assert counts(core) == {"a": 20, "b": 20}
    assert counts(core) == {"a": 1, "b": 10, "c": 30}, "nobody else's prompt is there to be spared"


def test_beside_a_very_short_prompt_others_still_run_an_eighth_of_the_step() -> None:
    core = make_core(1000, max_num_batched_tokens=64, scheduling_policy="fair")
    add_for(core, "x", "a", length=2)
    add_for(core, "y", "b", "c", length=30)
    assert counts(core) == {"a": 2, "b": 8}


def test_decoding_requests_are_never_held_back() -> None:
    core = make_core(1000, max_num_batched_tokens=64, scheduling_policy="fair")
    add_for(core, "y", *"bcdefghijkl", length=2)
    step(core)
    add_for(core, "x", "a", length=2)
    assert counts(core) == {"a": 2} | dict.fromkeys("bcdefghijkl", 1)


def test_recomputation_of_another_tenant_is_held_back_like_a_prompt() -> None:
    core = make_core(1000, max_num_batched_tokens=64, scheduling_policy="fair", enable_caching=False)
    add_for(core, "y", "b", "c", length=2)
    for _ in range(40):
        step(core)
    core.reset_prefix_cache(reset_running_requests=True)
    core.abort_requests(["b"])
    add_for(core, "x", "a", length=10)
    assert counts(core) == {"a": 10, "c": 10}
    assert counts(core) == {"a": 1, "c": 32}


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("most", [None, 1])
@pytest.mark.parametrize("watermark", [0.0, 0.4])
def test_under_all_constraints_together_every_request_finishes(
    policy: str, interval: int, most: int | None, watermark: float
) -> None:
    core = make_core(
        14,
        max_num_batched_tokens=8,
        scheduling_policy=policy,
        prefill_schedule_interval=interval,
        max_num_partial_prefills=most,
        watermark=watermark,
        pipeline_depth=2,
    )
    requests = [
        make_request(
            f"r{n}",
            [1000 + n, *range(1, 1 + 5 * (n % 5))],
            make_params(3 + n % 7, ignore_eos=True),
            arrival_time=float(n),
            tenant="xyz"[n % 3],
        )
        for n in range(12)
    ]
    for request in requests:
        core.add_request(request)
    news = run_to_end(core)
    for request in requests:
        assert tokens_of(news[request.request_id]) == generate_alone(request, 10_000)[0]
