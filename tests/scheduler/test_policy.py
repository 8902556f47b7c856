"""Who is more urgent than whom: what each policy promises to everyone who waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest

from octavo.config import SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.scheduler.policy import FairPolicy, Policy, PriorityPolicy, create_policy
from octavo.scheduler.request import Request
from octavo.types.requests import EngineCoreRequest
from octavo.types.steps import SchedulerOutput
from tests.fakes import (
    FakeConstraint,
    FakeExecutor,
    make_core,
    make_params,
    make_request,
    run_to_end,
)

ROOMY = {"num_blocks": 10_000, "block_size": 16}


def a_request(name: str, length: int = 8, max_tokens: int = 8, **fields: object) -> EngineCoreRequest:
    """A request that shares no block with those of other names."""
    prompt = [1000 + int.from_bytes(name.encode(), "big") % 1_000_003, *range(1, length)]
    return make_request(name, prompt, make_params(max_tokens, ignore_eos=True), **fields)


def plans_of(core: EngineCore) -> list[SchedulerOutput]:
    executor = core.executor.runner
    assert isinstance(executor, FakeExecutor)
    return executor.outputs


def num_preemptions(core: EngineCore) -> int:
    return sum(len(plan.preempted_req_ids) for plan in plans_of(core))


def ranked(policy: Policy, *requests: EngineCoreRequest) -> list[str]:
    """The names of `requests`, which come in this order, the most urgent first."""
    queued = [Request(request, max_model_len=10_000) for request in requests]
    for request in queued:
        policy.rank(request)
    return [request.request_id for request in sorted(queued)]


# ------------------------------------------------------------------------------------------------ first come


def test_fcfs_uses_only_the_order_of_arrival() -> None:
    requests = [a_request(name, arrival_time=-float(n), tenant=name) for n, name in enumerate("cab")]
    assert ranked(create_policy(SchedulerConfig()), *requests) == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("name", "kind"), [("fcfs", Policy), ("priority", PriorityPolicy), ("fair", FairPolicy)]
)
def test_the_configuration_names_the_policy(name: str, kind: type[Policy]) -> None:
    assert type(create_policy(SchedulerConfig(scheduling_policy=name))) is kind


# -------------------------------------------------------------------------------------------------- priority


def test_priority_comes_before_arrival_and_arrival_before_the_id() -> None:
    requests = [
        a_request("idle", priority=7, arrival_time=0.0),
        a_request("late", priority=1, arrival_time=9.0),
        a_request("b", priority=1, arrival_time=1.0),
        a_request("a", priority=1, arrival_time=1.0),
        a_request("urgent", priority=-1, arrival_time=50.0),
    ]
    assert ranked(PriorityPolicy(aging_s=300.0), *requests) == ["urgent", "a", "b", "late", "idle"]


@pytest.mark.parametrize(("lead_s", "first"), [(19.0, "urgent"), (21.0, "patient")])
def test_aging_s_seconds_of_waiting_equal_one_level_of_priority(lead_s: float, first: str) -> None:
    patient = a_request("patient", priority=2, arrival_time=1.7e9)
    urgent = a_request("urgent", priority=0, arrival_time=1.7e9 + lead_s)
    assert ranked(PriorityPolicy(aging_s=10.0), patient, urgent)[0] == first


def test_without_aging_no_wait_is_long_enough() -> None:
    patient = a_request("patient", priority=1, arrival_time=0.0)
    urgent = a_request("urgent", priority=0, arrival_time=1e9)
    assert ranked(PriorityPolicy(aging_s=0.0), patient, urgent) == ["urgent", "patient"]


@pytest.mark.parametrize(("aging_s", "is_served"), [(5.0, True), (0.0, False)])
def test_only_aging_lets_a_request_through_a_stream_of_more_urgent_ones(
    aging_s: float, is_served: bool
) -> None:
    core = make_core(**ROOMY, max_num_seqs=2, scheduling_policy="priority", priority_aging_s=aging_s)
    stream = (a_request(f"u{n}", arrival_time=n * 1.0) for n in count())
    assert not serve_beside(core, "nobody", stream, num_steps=3)  # who take both seats
    core.add_request(a_request("patient", priority=3, arrival_time=3.0))
    assert serve_beside(core, "patient", stream) is is_served


# ------------------------------------------------------------------------------------------------ starvation


def serve_beside(
    core: EngineCore, name: str, others: Iterator[EngineCoreRequest], num_steps: int = 400
) -> bool:
    """Whether the request `name` ends while a new one of `others` comes with every step."""
    for _ in range(num_steps):
        core.add_request(next(others))
        ended = {output.request_id for output in core.step().outputs if output.finish_reason is not None}
        if name in ended:
            return True
    core.check()
    return False


@pytest.mark.parametrize("is_passed_over", [False, True], ids=["plain", "passed over"])
@pytest.mark.parametrize("others", ["one tenant", "many tenants"])
@pytest.mark.parametrize("num_blocks", [10_000, 9], ids=["few seats", "few blocks"])
@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_no_request_starves_in_an_endless_stream_of_others(
    policy: str, num_blocks: int, others: str, is_passed_over: bool
) -> None:
    constraint = FakeConstraint()
    core = make_core(
        num_blocks,
        max_num_seqs=2 if num_blocks > 9 else 8,
        scheduling_policy=policy,
        priority_aging_s=5.0,
        constraints=[constraint],
    )
    tenants = count() if others == "many tenants" else iter(lambda: 0, 1)
    stream = (
        a_request(f"u{n}", 3, 4, arrival_time=n * 1.0, tenant=f"other{next(tenants)}") for n in count(1)
    )
    for number in range(3):  # the last of which has most before it
        core.add_request(
            a_request(f"p{number}", 6, 12, priority=3 * (policy == "priority"), arrival_time=0.0, tenant="me")
        )
    if is_passed_over:
        constraint.vetoed = {"p2"}
        assert not serve_beside(core, "p2", stream, num_steps=20)
        constraint.vetoed = set()
    assert serve_beside(core, "p2", stream)


# ------------------------------------------------------------------------------------------------------ fair


def serve_backlog(core: EngineCore, costs: dict[str, tuple[int, int]], num_steps: int) -> Counter[str]:
    """Let each tenant always have 6 requests under way, of so many prompt and output tokens, for so many
    steps; the tokens of each tenant's requests that ended.
    """
    served: Counter[str] = Counter()
    under_way = Counter(request.tenant for request in core.scheduler.requests.values())
    for step in range(num_steps):
        for tenant, (length, max_tokens) in costs.items():
            for number in range(6 - under_way[tenant]):
                under_way[tenant] += 1
                name = f"{len(plans_of(core))}.{step}.{number}{tenant}"
                core.add_request(a_request(name, length, max_tokens, tenant=tenant))
        for output in core.step().outputs:
            if output.finish_reason is not None:
                tenant = output.request_id[-1]
                under_way[tenant] -= 1
                served[tenant] += sum(costs[tenant])
    core.check()
    return served


@pytest.mark.parametrize("settings", [{"max_num_seqs": 4}, {"num_blocks": 25}], ids=["seats", "blocks"])
@pytest.mark.parametrize("weights", [{"a": 1.0, "b": 1.0}, {"a": 3.0, "b": 1.0}, {"a": 1.0, "b": 0.25}])
def test_tenants_share_by_their_weights_over_a_long_run(
    weights: dict[str, float], settings: dict[str, int]
) -> None:
    core = make_core(
        **{**ROOMY, "block_size": 4, **settings},
        scheduling_policy="fair",
        tenant_weights=weights,
        max_num_batched_tokens=32,
    )
    served = serve_backlog(core, {"a": (20, 8), "b": (7, 20)}, num_steps=2000)
    assert served["a"] / served.total() == pytest.approx(weights["a"] / sum(weights.values()), rel=0.05)


def test_a_tenant_is_charged_only_for_the_tokens_it_used() -> None:
    policy = FairPolicy({})
    policy.rank(Request(a_request("stays", tenant="stays"), 10_000))
    wasteful, frugal = (
        Request(a_request(name, 10, max_tokens, tenant=name), 10_000)
        for name, max_tokens in (("wasteful", 990), ("frugal", 10))
    )
    for request in (wasteful, frugal):
        policy.rank(request)
        policy.begin(request)
    assert wasteful.order < frugal.order
    for request in (wasteful, frugal):
        request.token_ids += [5] * 10
        policy.end(request)
    again = [a_request(f"{name}2", tenant=name) for name in ("wasteful", "frugal")]
    assert ranked(policy, *again) == ["wasteful2", "frugal2"], "both have had 20 tokens"


def test_requests_that_never_ran_cost_nothing() -> None:
    policy = FairPolicy({})
    stays, leaves = (Request(a_request(name, 500, tenant=name), 10_000) for name in ("stays", "leaves"))
    policy.rank(stays)
    policy.rank(leaves)
    policy.end(leaves)
    again = [a_request("leaves2", tenant="leaves"), a_request("stays2", tenant="stays")]
    assert ranked(policy, *again) == ["leaves2", "stays2"]
    assert policy.virtual_time == 0.0


def test_of_one_tenant_the_first_to_come_is_the_first_served() -> None:
    requests = [a_request(f"r{n}", 100 - n, tenant="a") for n in range(20)]
    assert ranked(FairPolicy({"a": 0.3}), *requests) == [request.request_id for request in requests]


SITUATIONS = {
    # The settings, what each of the crowd's 100 requests is, and what the newcomer's one is.
    "all seats are taken": ({"max_num_seqs": 8}, (20, 200), (20, 20)),
    "all blocks are taken": ({"num_blocks": 60}, (20, 200), (20, 20)),
    "long prompts fill the step": ({"max_num_seqs": 8}, (2000, 20), (640, 20)),
    "long prompts before a short one": ({"max_num_seqs": 8}, (2000, 20), (10, 20)),
}


@pytest.mark.parametrize("num_steps_before", [1, 5, 50, 300])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_beside_a_tenant_with_100_requests_one_has_its_first_token_in_at_most_twice_the_work(
    situation: str, num_steps_before: int
) -> None:
    settings, crowd, one = SITUATIONS[situation]
    settings = {**ROOMY, "max_num_batched_tokens": 64, "scheduling_policy": "fair", **settings}
    newcomer = a_request("newcomer", *one, tenant="newcomer")
    alone = make_core(**settings)
    num_steps_alone, num_tokens_alone = work_until_first_token(alone, newcomer)
    core = make_core(**settings)
    for number in range(100):
        core.add_request(a_request(f"crowd{number}", *crowd, tenant="crowd"))
    for _ in range(num_steps_before):
        core.step()
    num_steps, num_tokens = work_until_first_token(core, newcomer)
    # Those of the crowd who generate go on, each with the one token a step that it generates.
    plans = plans_of(core)[num_steps_before:]
    num_decodes = sum(number == 1 for plan in plans for number in plan.num_scheduled_tokens.values())
    assert num_steps <= 2 * num_steps_alone + (num_steps_alone > 1 and num_decodes > 0)
    assert num_tokens <= 2 * num_tokens_alone + num_decodes + 64 * (num_steps > 2 * num_steps_alone)


def work_until_first_token(core: EngineCore, request: EngineCoreRequest) -> tuple[int, int]:
    """Steps, and tokens computed in them, from the coming of `request` to its first token."""
    num_steps_before = len(plans_of(core))
    core.add_request(request)
    while request.request_id not in {output.request_id for output in core.step().outputs}:
        core.check()
    plans = plans_of(core)[num_steps_before:]
    return len(plans), sum(plan.total_num_scheduled_tokens for plan in plans)


def test_an_idle_tenant_collects_no_credit() -> None:
    core = make_core(**ROOMY, max_num_seqs=4, scheduling_policy="fair", max_num_batched_tokens=32)
    serve_backlog(core, {"b": (7, 20)}, num_steps=1000)
    served = serve_backlog(core, {"b": (7, 20), "i": (7, 20)}, num_steps=200)
    assert served["i"] / served.total() == pytest.approx(0.5, rel=0.2)


@pytest.mark.parametrize("settings", [{"max_num_seqs": 4}, {"num_blocks": 25}], ids=["seats", "blocks"])
def test_displacing_does_not_thrash(settings: dict[str, int]) -> None:
    core = make_core(
        **{**ROOMY, "block_size": 4, **settings}, scheduling_policy="fair", max_num_batched_tokens=32
    )
    requests = [a_request(f"a{n}", 10, 20, tenant="a") for n in range(30)]
    requests += [a_request(f"{tenant}{n}", 10, 20, tenant=tenant) for n in range(5) for tenant in "bcd"]
    for number, request in enumerate(requests):
        core.add_request(request)
        if number % 5 == 0:
            core.step()
    while core.has_unfinished_requests():
        core.step()
    assert 0 < num_preemptions(core) <= 2 * len(requests)


def test_a_tenant_does_not_displace_its_own_requests() -> None:
    core = make_core(**ROOMY, max_num_seqs=2, scheduling_policy="fair")
    for number in range(6):
        core.add_request(a_request(f"a{number}", tenant="a"))
        core.step()
    run_to_end(core)
    assert num_preemptions(core) == 0


def test_a_tenant_does_not_displace_even_its_own_later_requests() -> None:
    constraint = FakeConstraint(vetoed={"a0"})
    core = make_core(**ROOMY, max_num_seqs=1, scheduling_policy="fair", constraints=[constraint])
    for number in range(2):
        core.add_request(a_request(f"a{number}", tenant="a"))
    core.step()
    constraint.vetoed = set()
    core.step()
    assert list(plans_of(core)[-1].num_scheduled_tokens) == ["a1"]
    assert num_preemptions(core) == 0


def test_a_request_that_a_constraint_stops_displaces_no_other() -> None:
    constraint = FakeConstraint(vetoed={"b"})
    core = make_core(**ROOMY, max_num_seqs=2, scheduling_policy="fair", constraints=[constraint])
    for number in range(4):
        core.add_request(a_request(f"a{number}", tenant="a"))
    core.step()
    core.add_request(a_request("b", tenant="b"))
    core.step()
    assert num_preemptions(core) == 0
    constraint.vetoed = set()
    core.step()
    assert num_preemptions(core) == 1
    assert "b" in plans_of(core)[-1].num_scheduled_tokens


def test_no_request_is_displaced_if_the_waiting_one_still_could_not_run() -> None:
    core = make_core(num_blocks=21, block_size=4, scheduling_policy="fair")
    core.add_request(a_request("a0", 50, 8, tenant="a"))
    core.add_request(a_request("a1", 8, 8, tenant="a"))
    core.step()
    core.add_request(a_request("b", 40, 8, tenant="b"))  # comes before a1 and after a0
    core.step()
    assert num_preemptions(core) == 0
    assert set(plans_of(core)[-1].num_scheduled_tokens) == {"a0", "a1"}
    assert set(run_to_end(core)) == {"a0", "a1", "b"}


def test_tenants_that_are_gone_are_forgotten() -> None:
    core = make_core(**ROOMY, scheduling_policy="fair")
    core.add_request(a_request("stays", max_tokens=100_000, tenant="stays"))
    for number in range(10_000):
        core.add_request(a_request(f"r{number}", 2, 1, tenant=f"t{number}"))
        if number % 5 == 4:
            core.step()
    policy = core.scheduler.table.policy
    assert isinstance(policy, FairPolicy)
    sizes = {name: len(value) for name, value in vars(policy).items() if hasattr(value, "__len__")}
    assert sizes
    assert max(sizes.values()) <= 20, sizes
