"""A request's statuses and what it takes from its parameters."""

from __future__ import annotations

import pytest

from octavo.scheduler.request import Request, RequestStatus
from octavo.types.outputs import FinishReason
from octavo.types.params import SamplingParams
from tests.fakes import EOS, make_params, make_request

UNFINISHED = [
    RequestStatus.WAITING,
    RequestStatus.WAITING_FOR_PREPARATION,
    RequestStatus.RUNNING,
    RequestStatus.PREEMPTED,
]


@pytest.mark.parametrize("status", RequestStatus)
def test_a_request_is_finished_exactly_when_it_has_a_reason(status: RequestStatus) -> None:
    assert status.is_finished is (status not in UNFINISHED)
    assert (status.finish_reason is not None) is status.is_finished


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (RequestStatus.FINISHED_STOPPED, "stop"),
        (RequestStatus.FINISHED_LENGTH_CAPPED, "length"),
        (RequestStatus.FINISHED_IGNORED, "length"),
        (RequestStatus.FINISHED_ABORTED, "abort"),
        (RequestStatus.FINISHED_ERROR, "error"),
        (RequestStatus.FINISHED_REPETITION, "repetition"),
    ],
)
def test_ends_are_called_as_in_the_openai_api_where_it_has_a_word(status: RequestStatus, reason: str) -> None:
    assert str(status.finish_reason) == reason


def test_every_reason_has_a_status() -> None:
    assert {status.finish_reason for status in RequestStatus} == {None, *FinishReason}


def test_a_new_request_waits_and_has_nothing() -> None:
    request = Request(make_request("a", [1, 2, 3]), max_model_len=100)
    assert request.status is RequestStatus.WAITING
    assert (request.num_tokens, request.num_prompt_tokens, request.num_output_tokens) == (3, 3, 0)
    assert (request.num_computed_tokens, request.row, request.num_preemptions) == (0, -1, 0)


def test_the_prompt_that_was_handed_over_is_not_written_to() -> None:
    handed_over = make_request("a", [1, 2, 3])
    Request(handed_over, max_model_len=100).token_ids.append(9)
    assert handed_over.prompt_token_ids == [1, 2, 3]


def test_the_model_sets_the_length_where_the_request_does_not() -> None:
    assert Request(make_request("a", [1], make_params(None)), max_model_len=77).max_length == 77
    assert Request(make_request("a", [1], make_params(5)), max_model_len=77).max_length == 6
    assert Request(make_request("a", [1], make_params(99)), max_model_len=77).max_length == 77


def test_a_request_may_ignore_the_end_of_sequence() -> None:
    assert Request(make_request("a", [1]), 100).eos_token_ids == {EOS}
    assert Request(make_request("a", [1], make_params(ignore_eos=True)), 100).eos_token_ids == frozenset()


@pytest.mark.parametrize(
    ("params", "skips"),
    [
        (SamplingParams(), False),
        (SamplingParams(prompt_logprobs=0), True),
        (SamplingParams(skip_reading_prefix_cache=True), True),
        (SamplingParams(skip_reading_prefix_cache=False), False),
    ],
)
def test_prompt_logprobs_and_the_request_itself_may_rule_out_the_prefix_cache(
    params: SamplingParams, skips: bool
) -> None:
    assert Request(make_request("a", [1], params), 100).skip_reading_prefix_cache is skips
