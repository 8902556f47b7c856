"""`StepBudget`: what is left of a step while it is being planned, and the plan as far as it has come."""

from __future__ import annotations

from octavo.scheduler.request import Request
from octavo.types.steps import BlockIds, CachedRequestData, NewRequestData


class StepBudget:
    """Lives for one `schedule` call."""

    __slots__ = (
        "cached_req_ids",
        "new_block_ids",
        "new_reqs",
        "num_candidates",
        "num_scheduled_tokens",
        "num_tokens",
        "preempted",
        "scheduled",
        "stopped",
    )

    def __init__(self, num_tokens: int, num_candidates: int) -> None:
        self.num_tokens = num_tokens  # tokens the step can still take
        self.num_candidates = num_candidates  # requests that could have a share of the step
        self.stopped = False  # a constraint has closed the step for everyone behind
        self.preempted: list[Request] = []
        self.scheduled: list[tuple[Request, int]] = []
        self.num_scheduled_tokens: dict[str, int] = {}
        self.new_reqs: list[NewRequestData] = []
        self.cached_req_ids: list[str] = []
        self.new_block_ids: list[BlockIds | None] = []

    def take(self, request: Request, count: int) -> None:
        """`request` runs `count` tokens in this step."""
        self.num_tokens -= count
        self.stopped |= self.num_tokens == 0
        self.scheduled.append((request, count))
        self.num_scheduled_tokens[request.request_id] = count

    def take_running(self, request: Request, count: int, block_ids: BlockIds) -> None:
        """The same for a request the worker has in a row, which gets `block_ids` on top of those it has."""
        self.take(request, count)
        self.cached_req_ids.append(request.request_id)
        self.new_block_ids.append(block_ids if any(block_ids) else None)

    def take_new(self, request: Request, count: int, block_ids: BlockIds) -> None:
        """The same for a request that takes a row in this step."""
        self.take(request, count)
        self.new_reqs.append(
            NewRequestData(
                req_id=request.request_id,
                row=request.row,
                token_ids=list(request.token_ids),
                num_prompt_tokens=request.num_prompt_tokens,
                num_computed_tokens=request.num_computed_tokens,
                block_ids=block_ids,
                sampling_params=request.sampling_params,
            )
        )

    @property
    def cached_reqs(self) -> CachedRequestData:
        """The running requests of the plan."""
        return CachedRequestData(self.cached_req_ids, self.new_block_ids)
