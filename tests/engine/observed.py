"""What observers see, without an engine: requests, steps, a clock that is set."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.types.outputs import EngineCoreOutput, FinishReason
from octavo.types.steps import CachedRequestData, SchedulerOutput


@dataclass
class Seen:
    """A request as an observer sees it."""

    request_id: str
    num_prompt_tokens: int = 10
    num_tokens: int = 10
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None


@dataclass
class State:
    """An engine's state."""

    num_running: int = 0
    num_waiting: int = 0
    usage: float = 0.0


class Clock:
    """A clock that shows what it is set to."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def plan(**num_scheduled_tokens: int) -> SchedulerOutput:
    """A step of so many tokens of each request."""
    return SchedulerOutput(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=CachedRequestData([], []),
        num_scheduled_tokens=num_scheduled_tokens,
        total_num_scheduled_tokens=sum(num_scheduled_tokens.values()),
        finished_req_ids=set(),
        preempted_req_ids=set(),
        num_common_prefix_blocks=[],
    )


def news(**num_tokens: int) -> list[EngineCoreOutput]:
    """So many new tokens of each request."""
    return [EngineCoreOutput(request_id, [7] * count) for request_id, count in num_tokens.items()]
