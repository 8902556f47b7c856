"""Takes a step's results into one request: appends tokens, checks whether they end it, makes the output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from octavo.scheduler.request import Request, RequestStatus
from octavo.scheduler.stop import check_stop
from octavo.types.outputs import EngineCoreOutput
from octavo.types.sampling import INVALID_TOKEN_ID
from octavo.types.steps import ModelRunnerOutput, SchedulerOutput

NOTHING_TO_SAMPLE = "no token can be sampled: the logits are not finite numbers, or every token is forbidden"


class ScheduledShare(msgspec.Struct, frozen=True):
    """A request's share of a step in flight.

    It never leaves the core. It is a Struct because that is made in a third of the time of a NamedTuple, and
    one is made for each request and step.
    """

    request: Request
    num_tokens: int  # tokens that the step runs, drafts included
    num_drafts: int = 0  # the last num_drafts of these tokens are drafts
    num_restarts: int = 0  # Request.num_restarts when the step was planned

    def put_in_flight(self) -> None:
        """Count the tokens of the step as computed and in flight, and the token that it will sample as a
        placeholder. Drafts count as accepted until the results are in. Mutates the request.
        """
        request = self.request
        request.num_computed_tokens += self.num_tokens
        request.num_in_flight_tokens += self.num_tokens
        request.num_drafts_in_flight += self.num_drafts
        if request.num_computed_tokens - self.num_drafts == request.num_planned_tokens:
            request.num_output_placeholders += 1

    @property
    def is_void(self) -> bool:
        """Whether the request has ended or restarted since the step was planned. Its results are then not
        taken in.
        """
        return self.request.status.is_finished or self.request.num_restarts != self.num_restarts


class PlannedStep(NamedTuple):
    """A step in flight: the output for the worker, and the share of each request."""

    output: SchedulerOutput
    shares: list[ScheduledShare]  # empty once the results have been taken in
    number: int = 0  # steps are numbered in the order of their plans


def take_in(share: ScheduledShare, result: ModelRunnerOutput) -> EngineCoreOutput | None:
    """Take the results of a share, which must not be void, into its request. Mutates the request, whose
    status says whether it has ended.

    Returns the output; None if nothing was sampled, because known tokens are still to be computed.
    """
    request = share.request
    request.num_in_flight_tokens -= share.num_tokens
    request.num_drafts_in_flight -= share.num_drafts
    sampled = result.sampled_token_ids.get(request.request_id)
    if sampled is None:
        return None
    request.num_output_placeholders -= 1
    num_rejected = 1 + share.num_drafts - len(sampled)
    num_new = _append_output_tokens(request, sampled)
    if share.num_drafts and request.row >= 0:  # it has a row: roll back the KV of rejected drafts
        kept = request.num_computed_tokens - num_rejected
        request.num_computed_tokens = min(kept, request.num_tokens)
    logprobs = result.logprobs.get(request.request_id)
    return EngineCoreOutput(
        request.request_id,
        request.token_ids[len(request.token_ids) - num_new :],
        request.status.finish_reason,
        request.stop_reason,
        logprobs[:num_new] if logprobs else None,
        request.num_cached_tokens,
        _results_of(request, result) if result.results else None,
    )


def _results_of(request: Request, result: ModelRunnerOutput) -> dict[str, Any]:
    """The results of features for a request, by feature."""
    req_id = request.request_id
    return {name: found[req_id] for name, found in result.results.items() if req_id in found}


def _append_output_tokens(request: Request, token_ids: Sequence[int]) -> int:
    """Append `token_ids` up to the first that ends the request. Returns how many were appended."""
    for count, token_id in enumerate(token_ids, start=1):
        if token_id == INVALID_TOKEN_ID:
            request.status = RequestStatus.FINISHED_ERROR
            request.stop_reason = NOTHING_TO_SAMPLE
            return count - 1
        request.token_ids.append(token_id)
        if check_stop(request):
            return count
    return len(token_ids)
