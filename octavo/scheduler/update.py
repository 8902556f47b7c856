"""What a step's results mean for one request: its new tokens, whether they end it, and the news of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from octavo.scheduler.request import Request, RequestStatus
from octavo.scheduler.stop import check_stop
from octavo.types.outputs import EngineCoreOutput
from octavo.types.sampling import INVALID_TOKEN_ID
from octavo.types.steps import ModelRunnerOutput, SchedulerOutput


class ScheduledShare(msgspec.Struct, frozen=True):
    """A request's share of a step in flight.

    (It stays in the core. A Struct is made in a third of the time of a NamedTuple, once a request and step.)
    """

    request: Request
    num_tokens: int

    def put_in_flight(self) -> None:
        """The step is about to run: what it computes counts from now on, what it will sample has a place."""
        request = self.request
        request.num_computed_tokens += self.num_tokens
        request.num_in_flight_tokens += self.num_tokens
        if request.num_computed_tokens == request.num_planned_tokens:
            request.num_output_placeholders += 1

    @property
    def is_void(self) -> bool:
        """Whether the request has ended since the step was planned, so that its results are of no use."""
        return self.request.status.is_finished


class PlannedStep(NamedTuple):
    """A step that was planned and whose results are not in yet: what the worker is told, and whose it is."""

    output: SchedulerOutput
    shares: list[ScheduledShare]  # empty once the results have been taken in


def take_in(share: ScheduledShare, result: ModelRunnerOutput) -> EngineCoreOutput | None:
    """Take the results of a share that is not void into its request, whose status tells if it has ended.

    Returns the news; None where nothing was sampled, because known tokens are still to be computed.
    """
    request = share.request
    request.num_in_flight_tokens -= share.num_tokens
    sampled = result.sampled_token_ids.get(request.request_id)
    if sampled is None:
        return None
    request.num_output_placeholders -= 1
    num_new = _append_output_tokens(request, sampled)
    logprobs = result.logprobs.get(request.request_id)
    return EngineCoreOutput(
        request.request_id,
        request.token_ids[len(request.token_ids) - num_new :],
        request.status.finish_reason,
        request.stop_reason,
        logprobs[:num_new] if logprobs else None,
        result.prompt_logprobs.get(request.request_id),
        request.num_cached_tokens,
    )


def _append_output_tokens(request: Request, token_ids: Sequence[int]) -> int:
    """Append `token_ids` up to the first that ends the request; returns how many that were."""
    for count, token_id in enumerate(token_ids, start=1):
        if token_id == INVALID_TOKEN_ID:
            request.status = RequestStatus.FINISHED_ERROR
            request.stop_reason = "the model's logits are not finite numbers"
            return count - 1
        request.token_ids.append(token_id)
        if check_stop(request):
            return count
    return len(token_ids)
