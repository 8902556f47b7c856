"""Measures the cost of scheduling: the times of `schedule` and `update_from_output`, without a model.

Every case is the steady state of a full engine. All running requests decode one token in each step. A
sixteenth of them take a new block. The first waiting request does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns

from rich.table import Table

from octavo.config import SchedulerConfig
from octavo.kv_cache.kv_cache_manager import KVCacheManager
from octavo.scheduler.scheduler import Scheduler
from octavo.types.kv import FullAttentionSpec, KVCacheConfig, KVCacheGroup, SlidingWindowSpec
from octavo.types.params import SamplingParams
from octavo.types.requests import EngineCoreRequest
from octavo.types.steps import ModelRunnerOutput, SchedulerOutput

BLOCK_SIZE = 16
WINDOW = 512  # tokens
NUM_WARM_UP_STEPS = 20
TOKEN_ID = 7  # the token that every request generates in every step
PARAMS = SamplingParams(temperature=0.0, seed=0, max_tokens=None, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class SchedulerCase:
    """A load under which the scheduler is measured."""

    num_running: int
    num_waiting: int = 0
    position: int = 100  # tokens each running request has when measuring begins
    num_windows: int = 0  # groups of sliding-window layers, besides one group of full attention


@dataclass(frozen=True, slots=True)
class SchedulerCost:
    """The cost of one step in microseconds: medians over the steps of the fastest run."""

    case: SchedulerCase
    schedule_us: float
    update_us: float
    step_us: float  # both together

    @property
    def us_per_request(self) -> float:
        """The step's cost divided by the number of running requests."""
        return self.step_us / self.case.num_running


STANDARD_CASES = (
    SchedulerCase(num_running=1),
    SchedulerCase(num_running=1, position=4000),
    SchedulerCase(num_running=64),
    SchedulerCase(num_running=64, position=4000),
    SchedulerCase(num_running=64, position=4000, num_windows=5),
    SchedulerCase(num_running=64, num_waiting=10_000),
    SchedulerCase(num_running=256, num_waiting=1000),
    SchedulerCase(num_running=256, num_waiting=10_000),
)


def measure(case: SchedulerCase, num_steps: int = 300, num_runs: int = 5) -> SchedulerCost:
    """Run `case` for `num_steps` steps, `num_runs` times. The fastest run counts: it was disturbed least."""
    return min((_measure_once(case, num_steps) for _ in range(num_runs)), key=lambda cost: cost.step_us)


def render(costs: Sequence[SchedulerCost]) -> Table:
    """The costs as a table, with one line for each case."""
    table = Table(title="The scheduler's cost of a step, in µs")
    for heading in ("running", "waiting", "position", "windows", "schedule", "update", "step", "per request"):
        table.add_column(heading, justify="right")
    for cost in costs:
        counts = (cost.case.num_running, cost.case.num_waiting, cost.case.position, cost.case.num_windows)
        times = (cost.schedule_us, cost.update_us, cost.step_us)
        table.add_row(
            *(f"{count:,}" for count in counts), *(f"{us:.0f}" for us in times), f"{cost.us_per_request:.1f}"
        )
    return table


def _measure_once(case: SchedulerCase, num_steps: int) -> SchedulerCost:
    scheduler = _make_scheduler(case, NUM_WARM_UP_STEPS + num_steps)
    schedule_ns, update_ns = [], []
    for _ in range(NUM_WARM_UP_STEPS + num_steps):
        begun = perf_counter_ns()
        step = scheduler.schedule()
        planned = perf_counter_ns()
        result = _sample(step.output)
        sampled = perf_counter_ns()
        scheduler.update_from_output(step, result)
        schedule_ns.append(planned - begun)
        update_ns.append(perf_counter_ns() - sampled)
    assert len(scheduler.running) == case.num_running, "a request was admitted, preempted or has finished"
    step_ns = [sum(both) for both in zip(schedule_ns, update_ns, strict=True)]
    medians = [median(times[NUM_WARM_UP_STEPS:]) / 1000 for times in (schedule_ns, update_ns, step_ns)]
    return SchedulerCost(case, *medians)


def _make_scheduler(case: SchedulerCase, num_steps: int) -> Scheduler:
    """A scheduler whose first step computes the prompts of all running requests. No other request fits."""
    # Lengths differ by up to a block, so that about equally many requests need a new block in each step.
    prompts = [_prompt(number, case.position + number % BLOCK_SIZE) for number in range(case.num_running)]
    num_blocks = 1 + sum(-(-(len(prompt) + num_steps + 1) // BLOCK_SIZE) for prompt in prompts)
    num_blocks *= 1 + case.num_windows
    kv_cache = KVCacheManager(KVCacheConfig(num_blocks, _make_groups(case), max(map(len, prompts))))
    config = SchedulerConfig(
        max_num_batched_tokens=sum(map(len, prompts)),
        max_num_seqs=case.num_running + 1,
        long_prefill_token_threshold=0,
    )
    scheduler = Scheduler(config, kv_cache, max_model_len=kv_cache.max_num_tokens)
    if case.num_waiting:
        prompts.append(_prompt(case.num_running, kv_cache.max_num_tokens - 1))  # needs all blocks
        prompts += [_prompt(case.num_running + 1, case.position)] * (case.num_waiting - 1)
    for number, prompt in enumerate(prompts):
        scheduler.add_request(_request(number, prompt))
    return scheduler


def _make_groups(case: SchedulerCase) -> tuple[KVCacheGroup, ...]:
    full = FullAttentionSpec(BLOCK_SIZE, num_kv_heads=1, head_size=1, head_bytes=2)
    window = SlidingWindowSpec(BLOCK_SIZE, num_kv_heads=1, head_size=1, head_bytes=2, window=WINDOW)
    return tuple(
        KVCacheGroup(spec, (layer,)) for layer, spec in enumerate([full, *[window] * case.num_windows])
    )


def _prompt(number: int, length: int) -> list[int]:
    """A prompt that shares no prefix with those of other numbers."""
    return [number] * length


def _request(number: int, prompt: list[int]) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=f"request-{number}",
        prompt_token_ids=prompt,
        sampling_params=PARAMS,
        eos_token_ids=frozenset({0}),
        arrival_time=float(number),
    )


def _sample(output: SchedulerOutput) -> ModelRunnerOutput:
    """The output of a worker for this step: one token for each request."""
    sampled = {request_id: [TOKEN_ID] for request_id in output.num_scheduled_tokens}
    return ModelRunnerOutput(sampled_token_ids=sampled, logprobs={})
