"""`StepBudget`: the tokens that a step can still take while it is planned, and the plan so far."""

from __future__ import annotations

from collections import Counter
from typing import Any

from octavo.scheduler.request import Request
from octavo.scheduler.update import ScheduledShare
from octavo.types.steps import BlockIds, CachedRequestData, NewRequestData


class StepBudget:
    """The budget and the plan of one step. Mutable; it lasts for one `schedule` call."""

    __slots__ = (
        "cached_req_ids",
        "drafts",
        "feature_data",
        "first_tenant",
        "is_short",
        "new_block_ids",
        "new_reqs",
        "num_candidates",
        "num_scheduled_tokens",
        "num_tokens",
        "prefill_tokens",
        "running",
        "scheduled",
        "step",
        "stopped",
    )

    def __init__(self, num_tokens: int, step: int, running: list[Request], num_startable: int) -> None:
        """Begin the plan of step number `step`: `running` requests and up to `num_startable` waiting ones."""
        self.num_tokens = num_tokens  # tokens the step can still take
        self.step = step
        self.num_candidates = len(running) + num_startable  # requests that could have a share of the step
        self.running = running
        self.first_tenant: str | None = None  # the tenant of the most urgent prompt
        self.prefill_tokens: Counter[str] = Counter()  # tokens of prompts, by tenant
        self.stopped = False  # the step takes no further request
        self.is_short = False  # blocks ran out, so a request was preempted
        self.scheduled: list[ScheduledShare] = []
        self.num_scheduled_tokens: dict[str, int] = {}
        self.new_reqs: list[NewRequestData] = []
        self.cached_req_ids: list[str] = []
        self.new_block_ids: list[BlockIds | None] = []
        self.drafts: dict[str, list[int]] = {}  # by request: the drafts that the step verifies
        # By feature: what its core half tells its worker half about the step. `Constraint.commit` fills it.
        self.feature_data: dict[str, Any] = {}

    def take(self, request: Request, start: int, count: int) -> None:
        """Add to the plan that `request` runs `count` tokens from `start` on. Takes its drafts."""
        self.num_tokens -= count
        self.stopped |= self.num_tokens == 0
        if request.prefills(start):
            self._take_prefill(request, count)
        self.num_scheduled_tokens[request.request_id] = count
        num_drafts = 0
        if request.spec_token_ids:
            num_drafts = self._take_drafts(request, start + count - request.num_planned_tokens)
        self.scheduled.append(ScheduledShare(request, count, num_drafts, request.num_restarts))

    def take_running(self, request: Request, start: int, count: int, block_ids: BlockIds) -> None:
        """`take` a request that has a row. `block_ids` are the blocks that it gets in addition."""
        self.take(request, start, count)
        self.cached_req_ids.append(request.request_id)
        self.new_block_ids.append(block_ids if any(block_ids) else None)

    def take_new(self, request: Request, start: int, count: int, block_ids: BlockIds) -> None:
        """`take` a request that gets its row in this step. `block_ids` are all its blocks."""
        self.take(request, start, count)
        self.new_reqs.append(
            NewRequestData(
                req_id=request.request_id,
                row=request.row,
                token_ids=list(request.token_ids),
                num_prompt_tokens=request.num_prompt_tokens,
                num_computed_tokens=start,
                block_ids=block_ids,
                sampling_params=request.sampling_params,
                feature_data=request.feature_data,
            )
        )

    def _take_drafts(self, request: Request, count: int) -> int:
        """Plan to verify the first `count` drafts of the request (none if `count` is negative), and drop the
        rest. Returns the number of drafts that the step verifies.
        """
        drafts, request.spec_token_ids = request.spec_token_ids[: max(count, 0)], []
        if drafts:
            self.drafts[request.request_id] = drafts
        return len(drafts)

    def _take_prefill(self, request: Request, count: int) -> None:
        self.prefill_tokens[request.tenant] += count
        if self.first_tenant is None:
            self.first_tenant = request.tenant

    @property
    def has_decodes(self) -> bool:
        """Whether any running request has computed its prompt and decodes."""
        return any(not request.prefills(request.num_computed_tokens) for request in self.running)

    @property
    def num_partial_prefills(self) -> int:
        """Number of running requests whose prompts are still incomplete after the step as planned so far."""
        counts = self.num_scheduled_tokens
        return sum(
            request.prefills(request.num_computed_tokens + counts.get(request.request_id, 0))
            for request in self.running
        )

    @property
    def cached_reqs(self) -> CachedRequestData:
        """The planned requests that had a row before this step."""
        return CachedRequestData(self.cached_req_ids, self.new_block_ids)
