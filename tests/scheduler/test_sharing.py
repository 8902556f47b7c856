"""Requests that arrive together compute their common prefix once, and never use what a failed step left.

The fake executor writes the tokens of all rows in a layer before any row reads, and compares every context.
"""

from __future__ import annotations

import pytest

from octavo.engine import core as engine_core
from octavo.engine.core import EngineCore
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.update import PlannedStep
from octavo.types.observer import Observer, StoredBlock
from octavo.types.outputs import FinishReason
from octavo.types.protocols import Pending
from octavo.types.steps import ModelRunnerOutput, SchedulerOutput
from tests.fakes import (
    FakeExecutor,
    generate_alone,
    make_core,
    make_params,
    make_request,
    run_to_end,
    tokens_of,
)
from tests.scheduler.world import World

ANSWER = make_params(6, ignore_eos=True)
LONG = [1 + 7 * number % 40 for number in range(2000)]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_core.logger, "disabled", True)  # steps fail here as they were told to


def executor_of(core: EngineCore) -> FakeExecutor:
    runner = core.executor.runner
    assert isinstance(runner, FakeExecutor)
    return runner


def plans(core: EngineCore) -> list[SchedulerOutput]:
    return executor_of(core).outputs


def add(core: EngineCore, *prompts: list[int]) -> None:
    """Requests "0", "1" and so on, one for each prompt."""
    for number, prompt in enumerate(prompts):
        core.add_request(make_request(str(number), prompt, ANSWER, arrival_time=float(number)))


def num_prompt_tokens_run(core: EngineCore) -> int:
    """Tokens that all steps ran, without those that requests had sampled."""
    return sum(plan.total_num_scheduled_tokens for plan in plans(core)) - 5 * len(plans_by_request(core))


def plans_by_request(core: EngineCore) -> set[str]:
    return {req_id for plan in plans(core) for req_id in plan.num_scheduled_tokens}


def finish(core: EngineCore, *prompts: list[int]) -> None:
    """Run to the end. Each request gets what it gets alone."""
    news = run_to_end(core)
    for number, prompt in enumerate(prompts):
        due = generate_alone(make_request("alone", prompt, ANSWER), core.scheduler.max_model_len)[0]
        assert tokens_of(news[str(number)]) == due
    assert core.scheduler.kv_cache.usage == 0


def num_cached(core: EngineCore, prompt: list[int]) -> int:
    """Tokens of `prompt` that a request would hit now."""
    return len(prompt) - core.scheduler.table.num_tokens_to_compute(make_request("probe", prompt))


# ---------------------------------------------------------------------------------------------- computed once


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("most", [256, 300, 2048, 8192])
@pytest.mark.parametrize("kinds", [["full"], ["window", "full"]], ids="+".join)
def test_equal_prompts_that_arrive_together_are_computed_once(
    kinds: list[str], most: int, depth: int
) -> None:
    core = make_core(1000, 32, kinds=kinds, reach=100, max_num_batched_tokens=most, pipeline_depth=depth)
    add(core, *[LONG] * 4)
    finish(core, *[LONG] * 4)
    assert (
        num_prompt_tokens_run(core) == 2000 + 3
    )  # the other three run the last token, whose logits they want


@pytest.mark.parametrize("most", [256, 8192])
def test_states_are_shared_from_the_step_after_on(most: int) -> None:
    core = make_core(1000, 32, kinds=["recurrent", "full"], max_num_batched_tokens=most)
    add(core, *[LONG] * 4)
    finish(core, *[LONG] * 4)
    assert num_prompt_tokens_run(core) == 2000 + 3 * 16


def test_a_request_of_the_same_step_reads_blocks_that_another_writes() -> None:
    core = make_core(40)
    prompts = [[*range(1, 13), tail, tail, tail] for tail in (20, 30, 31)]
    add(core, *prompts)
    finish(core, *prompts)
    assert plans(core)[0].num_scheduled_tokens == {"0": 15, "1": 3, "2": 3}
    assert plans(core)[1].num_common_prefix_blocks == [3], "and attention knows that they share them"


def test_a_request_waits_a_step_for_a_tail_that_another_computes() -> None:
    core = make_core(40)
    prompt = list(range(1, 8))
    prompts = [prompt, prompt, [30, 31]]
    add(core, *prompts)
    finish(core, *prompts)
    assert plans(core)[0].num_scheduled_tokens == {"0": 7, "2": 2}, "nobody else waits"
    assert plans(core)[1].num_scheduled_tokens == {"0": 1, "2": 1, "1": 1}, "though the tail is full by then"
    assert len(plans(core)[1].kv_cache_block_copies) == 1


def test_what_is_copied_in_a_step_is_not_copied_on_in_it() -> None:
    core = make_core(60)
    prompt = list(range(1, 7))
    add(core, prompt)
    run_to_end(core)
    prompts = [[*prompt, 30], [*prompt, 30, 31], [*prompt, 30]]
    add(core, *prompts)
    finish(core, *prompts)


def test_a_request_does_not_wait_for_less_than_it_computes_itself() -> None:
    core = make_core(40)
    prompts = [list(range(1, 8)), [*range(1, 7), 30, 31, 32]]
    add(core, *prompts)
    finish(core, *prompts)
    assert plans(core)[0].num_scheduled_tokens == {"0": 7, "1": 5}


def test_a_request_that_skips_the_prefix_cache_does_not_wait() -> None:
    core = make_core(40)
    prompt = list(range(1, 8))
    params = make_params(6, ignore_eos=True, skip_reading_prefix_cache=True)
    core.add_request(make_request("0", prompt, ANSWER))
    core.add_request(make_request("1", prompt, params))
    finish(core, prompt, prompt)
    assert plans(core)[0].num_scheduled_tokens == {"0": 7, "1": 7}


def test_a_request_waits_only_as_long_as_the_other_one_goes_on() -> None:
    core = make_core(400, max_num_batched_tokens=64)
    prompt = LONG[:300]
    add(core, prompt, prompt)
    core.step()
    assert list(plans(core)[0].num_scheduled_tokens) == ["0"]
    core.abort_requests(["0"])
    core.step()
    assert plans(core)[1].num_scheduled_tokens.keys() == {"1"}
    news = run_to_end(core)["1"]
    assert tokens_of(news) == generate_alone(make_request("alone", prompt, ANSWER), 10_000)[0]


# ------------------------------------------------------------------------------------------------- what fails


class Told(Observer):
    """What is told of the prefix cache."""

    def __init__(self) -> None:
        self.stored: set[tuple[bytes, int]] = set()

    def block_stored(self, stored: StoredBlock) -> None:
        self.stored.add((stored.block_hash, stored.group_id))

    def block_removed(self, block_hash: bytes, group_id: int) -> None:
        self.stored.remove((block_hash, group_id))


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("fails_in", ["forward", "sample"])
@pytest.mark.parametrize("kinds", [["full"], ["window", "full"], ["recurrent", "full"]], ids="+".join)
def test_a_failed_step_leaves_nothing_findable(kinds: list[str], fails_in: str, depth: int) -> None:
    core = make_core(100, kinds=kinds, reach=100, pipeline_depth=depth)
    told = core.scheduler.kv_cache.coordinator.index._observer = Told()
    prompts = [[*range(1, 13), tail, tail, tail] for tail in (20, 30)]
    add(core, *prompts)
    executor_of(core).fails_in = fails_in
    outputs = core.step().outputs
    assert {output.request_id for output in outputs} <= {"0", "1"}
    assert all(output.finish_reason is FinishReason.ERROR for output in outputs)
    assert [num_cached(core, [*prompt, 99]) for prompt in prompts] == [0, 0]
    assert not told.stored
    core.check()
    run_to_end(core)


@pytest.mark.parametrize("depth", [2, 3])
def test_a_request_that_hit_blocks_of_a_failed_step_begins_again(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    stem = list(range(1, 13))
    core.add_request(make_request("fails", [*stem, 20], ANSWER))
    executor_of(core).fails_in = "forward"
    step, pending = launch(core)
    core.add_request(make_request("0", [*stem, 30, 31, 32], ANSWER))
    later, pending_later = launch(core)
    assert later.output.scheduled_new_reqs[0].num_computed_tokens == 12, "while the first step is in flight"
    with pytest.raises(RuntimeError):
        pending.result()
    core.scheduler.fail_step(step, "it failed")
    core.scheduler.check([later])
    assert num_cached(core, [*stem, 30, 31, 32]) == 0
    core.scheduler.update_from_output(later, pending_later.result())
    core.scheduler.check()
    finish(core, [*stem, 30, 31, 32])
    assert plans(core)[2].num_scheduled_tokens == {"0": 15}


def launch(core: EngineCore) -> tuple[PlannedStep, Pending[ModelRunnerOutput]]:
    """Plan a step and run it; nothing of it is taken in."""
    step = core.scheduler.schedule()
    core.executor.execute_model(step.output)
    return step, core.executor.sample_tokens()


@pytest.mark.parametrize("kinds", [["full"], ["window", "full"]], ids="+".join)
@pytest.mark.parametrize("is_aborted", [False, True])
def test_requests_begin_again_where_the_one_they_share_with_has_no_finite_logits(
    kinds: list[str], is_aborted: bool
) -> None:
    core = make_core(100, kinds=kinds, reach=100)
    stem = list(range(1, 13))
    prompts = [[*stem, 20], [*stem, 30, 31, 32, 33], [*stem, 30, 31, 32, 33, 34]]
    add(core, *prompts)
    executor_of(core).invalid.add(("0", 13))
    step, pending = launch(core)
    if is_aborted:
        core.abort_requests(["0"])
    outputs = core.scheduler.update_from_output(step, pending.result()).outputs
    core.scheduler.check()
    assert [each.request_id for each in outputs] == ([] if is_aborted else ["0"])
    assert num_cached(core, [*stem, 30, 31, 32, 33, 34]) == 0, "and what was built on it is forgotten"
    news = run_to_end(core)
    for number in (1, 2):
        assert (
            tokens_of(news[str(number)])
            == generate_alone(make_request("alone", prompts[number], ANSWER), 10_000)[0]
        )


def test_a_request_whose_blocks_others_rely_on_may_leave() -> None:
    core = make_core(100, pipeline_depth=2)
    stem = list(range(1, 13))
    core.add_request(make_request("leaves", [*stem, 20], ANSWER))
    step, pending = launch(core)
    core.abort_requests(["leaves"])
    core.add_request(make_request("0", [*stem, 30], ANSWER))
    later, pending_later = launch(core)
    assert later.output.num_scheduled_tokens == {"0": 1}
    core.scheduler.update_from_output(step, pending.result())
    news = core.scheduler.update_from_output(later, pending_later.result()).outputs
    rest = run_to_end(core)["0"]
    assert tokens_of([*news, *rest]) == generate_alone(make_request("alone", [*stem, 30], ANSWER), 10_000)[0]


def test_a_step_that_could_not_be_planned_leaves_nothing_findable(monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core(100)
    prompt = list(range(1, 14))
    add(core, prompt)

    def fail(self: Scheduler, *arguments: object) -> None:
        raise RuntimeError("no plan")

    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "_make_output", fail)
        (news,) = core.step().outputs
    assert news.finish_reason is FinishReason.ERROR
    assert num_cached(core, prompt) == 0
    assert core.scheduler.kv_cache.usage == 0


def test_random_worlds_share_wait_and_begin_again() -> None:
    num_early_hits = num_waits = num_restarts = 0
    for seed in range(400):
        world = World(seed)
        world.run()
        num_early_hits += world.sharing.num_early_hits
        num_waits += world.sharing.num_waits
        num_restarts += world.sharing.num_restarts
    assert num_early_hits > 50
    assert num_waits > 50
    assert num_restarts > 0
