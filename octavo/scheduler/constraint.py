"""`Constraint`: a rule that may reduce a request's share of a step, and the scheduler's own constraints.

A feature's core half is a constraint too. `limit` is pure, and `commit` runs only when the request has its
blocks. So a request that does not fit changes nothing, and nothing is ever rolled back.
"""

from __future__ import annotations

from concurrent.futures import Future

from octavo.config import SchedulerConfig
from octavo.kv_cache.kv_cache_manager import KVCacheManager
from octavo.scheduler.budget import StepBudget
from octavo.scheduler.request import Request, RequestStatus


class Constraint:
    """A rule that limits how many tokens of a request a step may run. Subclasses override methods."""

    # What happens when `limit` gives a waiting request no tokens. True: no later request is admitted in this
    # step. False: the step skips only this request. A running request is always only skipped.
    blocks_queue = False

    def prepare(self, request: Request) -> Future[None] | None:
        """Begin slow work that the request needs before it can run, on another thread. Must return at once.

        The request waits until the future is done. If the future raises, the request ends with that error.
        None = there is no such work.
        """
        return None

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        """Return how many of the `count` tokens from `start` on the request may run; 0 = none now. Pure."""
        return count

    def commit(self, request: Request, start: int, count: int, budget: StepBudget) -> None:
        """Reserve what the request needs to run these tokens, which are now certain to run. Write data for
        the feature's worker half into `budget.feature_data`.
        """

    def release(self, request: Request) -> None:
        """Give back what `commit` reserved. Called when the request finishes or is preempted."""


class StatelessConstraint(Constraint):
    """A constraint that has only `limit`. The scheduler does not call its other methods."""


class LongPrefill(StatelessConstraint):
    """A request runs at most `threshold` tokens if others could share the step. Short prompts wait less."""

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        return min(count, self.threshold) if budget.num_candidates > 1 else count


class ChunkLimit(StatelessConstraint):
    """A request runs at most `most` tokens in a step, even alone. The blocks of windows are sized for it."""

    def __init__(self, most: int) -> None:
        self.most = most

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        return min(count, self.most)


class TokenBudget(StatelessConstraint):
    """A step runs no more tokens than its budget. The rest of a prompt waits (chunked prefill)."""

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        return min(count, budget.num_tokens)  # never 0: planning stops when the budget is used up


class StepAlignment(StatelessConstraint):
    """A share that crosses a block's end stops at the last one, where a recurrent state can be cached."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        aligned = (start + count) // self.alignment * self.alignment
        return aligned - start if aligned > start else count


class WholePrompts(StatelessConstraint):
    """Without chunked prefill: a request starts only in a step whose budget covers all of its tokens."""

    blocks_queue = True

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        starts = request.status is not RequestStatus.RUNNING
        return 0 if starts and count > budget.num_tokens else count


class PartialPrefills(StatelessConstraint):
    """At most `most` requests have partly computed prompts. A prompt that fits the step is always allowed."""

    def __init__(self, most: int) -> None:
        self.most = most

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        begins = request.status is not RequestStatus.RUNNING
        partial = request.prefills(start + count)
        return 0 if begins and partial and budget.num_partial_prefills >= self.most else count


class PrefillInterval(StatelessConstraint):
    """While any request decodes, prompts run only in every `interval`th step. The other steps stay short."""

    blocks_queue = True

    def __init__(self, interval: int) -> None:
        self.interval = interval

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        waits = budget.step % self.interval and request.prefills(start) and budget.has_decodes
        return 0 if waits else count


class TenantShare(StatelessConstraint):
    """Under the fair policy: limits the prompt tokens of each tenant but that of the most urgent prompt.

    Each of them runs at most as many prompt tokens in a step as the most urgent tenant, or `least` if that is
    more. All requests of a step wait until the whole step is done. Without this rule a short prompt would
    wait for long prompts of tenants that have already had more than their share.
    """

    def __init__(self, least: int) -> None:
        self.least = least

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        first, tenant = budget.first_tenant, request.tenant
        if first is None or first == tenant or not request.prefills(start):
            return count
        most = max(budget.prefill_tokens[first], self.least)
        return max(min(count, most - budget.prefill_tokens[tenant]), 0)


def create_constraints(config: SchedulerConfig, kv_cache: KVCacheManager) -> list[Constraint]:
    """The constraints that `config` and the KV cache require, in the order in which they apply."""
    most = config.max_num_batched_tokens
    threshold = config.long_prefill_token_threshold
    constraints: list[Constraint] = []
    if config.prefill_schedule_interval > 1:
        constraints.append(PrefillInterval(config.prefill_schedule_interval))
    if not config.enable_chunked_prefill:
        constraints.append(WholePrompts())
    elif threshold != 0:
        constraints.append(LongPrefill(-(-most // 2) if threshold is None else threshold))
    if config.scheduling_policy == "fair" and config.enable_chunked_prefill:
        constraints.append(TenantShare(least=-(-most // 8)))
    constraints.append(TokenBudget())
    if config.enable_chunked_prefill and kv_cache.config.max_chunk < most:
        constraints.append(ChunkLimit(kv_cache.config.max_chunk))
    if config.enable_chunked_prefill and kv_cache.step_alignment > 1:
        constraints.append(StepAlignment(kv_cache.step_alignment))
    if config.max_num_partial_prefills is not None:
        constraints.append(PartialPrefills(config.max_num_partial_prefills))
    return constraints
