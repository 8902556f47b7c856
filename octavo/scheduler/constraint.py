"""`Constraint`: what may shrink or veto a request's share of a step, and the ones the scheduler always has.

A feature's core half is a constraint too. `limit` is pure and `commit` runs only once blocks are secured, so
a request that does not fit leaves no trace and nothing is ever rolled back.
"""

from __future__ import annotations

from concurrent.futures import Future

from octavo.config import SchedulerConfig
from octavo.kv_cache.kv_cache_manager import KVCacheManager
from octavo.scheduler.budget import StepBudget
from octavo.scheduler.request import Request, RequestStatus


class Constraint:
    """One rule about which requests may run how many tokens in a step. A feature's core half is one."""

    # Whether a veto of a waiting request lets nobody behind it begin in this step either; otherwise that one
    # is passed over. One that runs is always only passed over.
    blocks_queue = False

    def prepare(self, request: Request) -> Future[None] | None:
        """Begin what the request needs before it can run and what takes more than a moment, on a thread of
        its own. The request waits until the future is done, and ends with the error that it raises.
        None = nothing. Must return at once.
        """
        return None

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        """How many of the `count` tokens from `start` on the request may run; 0 = not in this step. Pure."""
        return count

    def commit(self, request: Request, start: int, count: int, budget: StepBudget) -> None:
        """The request will run these tokens: reserve what that takes, and write into `budget.feature_data`
        what the worker half must know.
        """

    def release(self, request: Request) -> None:
        """The request finished or was preempted: give back what `commit` reserved."""


class StatelessConstraint(Constraint):
    """A constraint that only limits: it prepares and reserves nothing, and is not asked to."""


class LongPrefill(StatelessConstraint):
    """A prompt that shares the step runs at most `threshold` tokens, so that short ones get in."""

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        """The threshold, unless nobody else wants a share of the step."""
        return min(count, self.threshold) if budget.num_candidates > 1 else count


class ChunkLimit(StatelessConstraint):
    """A request runs at most `most` tokens in a step, even alone: what windows can hold is reckoned by it."""

    def __init__(self, most: int) -> None:
        self.most = most

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        """That many."""
        return min(count, self.most)


class TokenBudget(StatelessConstraint):
    """A step runs so many tokens and no more; what does not fit waits for the next step (chunked prefill)."""

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        """What is left of the step: never 0, since a step that is full is over."""
        return min(count, budget.num_tokens)


class StepAlignment(StatelessConstraint):
    """Steps that cross a block's end stop at one, so that there is a recurrent state to be cached."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        """Up to the last multiple of `alignment` after `start`, if there is one."""
        aligned = (start + count) // self.alignment * self.alignment
        return aligned - start if aligned > start else count


class WholePrompts(StatelessConstraint):
    """Chunked prefill is off: a request starts only in a step that has room for all of its tokens."""

    blocks_queue = True

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        """All or nothing for a request that starts."""
        starts = request.status is not RequestStatus.RUNNING
        return 0 if starts and count > budget.num_tokens else count


class PartialPrefills(StatelessConstraint):
    """At most `most` requests are in the middle of their prompts at once; others wait for one to end it."""

    def __init__(self, most: int) -> None:
        self.most = most

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        """Nothing for one that would begin a prompt it cannot finish in this step, when there are enough."""
        begins = request.status is not RequestStatus.RUNNING
        partial = request.prefills(start + count)
        return 0 if begins and partial and budget.num_partial_prefills >= self.most else count


class PrefillInterval(StatelessConstraint):
    """Prompts run in every `interval`th step only, so that the steps between are short for those who decode.

    When nobody decodes there is nobody to spare, and prompts run in every step.
    """

    blocks_queue = True

    def __init__(self, interval: int) -> None:
        self.interval = interval

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        """Nothing for a prompt between two such steps."""
        waits = budget.step % self.interval and request.prefills(start) and budget.has_decodes
        return 0 if waits else count


class TenantShare(StatelessConstraint):
    """Under the fair policy: beside a prompt of a tenant that is behind its share, the prompts of another
    tenant run as many tokens as that one's, or `least` if that is more.

    A long step is paid for by all who are in it: without this a short prompt would wait for the long ones of
    whoever has had most already.
    """

    def __init__(self, least: int) -> None:
        self.least = least

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        """What the tenant's other prompts leave of that, in this step."""
        first, tenant = budget.first_tenant, request.tenant
        if first is None or first == tenant or not request.prefills(start):
            return count
        most = max(budget.prefill_tokens[first], self.least)
        return max(min(count, most - budget.prefill_tokens[tenant]), 0)


def create_constraints(config: SchedulerConfig, kv_cache: KVCacheManager) -> list[Constraint]:
    """The constraints that `config` and the KV cache ask for, in the order in which they have their say."""
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
