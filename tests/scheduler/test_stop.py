"""When a request has generated enough, and which of several reasons counts."""

from __future__ import annotations

import random

import pytest

from octavo.scheduler.request import Request, RequestStatus
from octavo.scheduler.stop import check_stop, ends_in_repetition
from octavo.types.params import RepetitionDetectionParams, SamplingParams
from tests.fakes import EOS, make_request

STUTTER = RepetitionDetectionParams(max_pattern_size=2, min_count=2)


def stopped(outputs: list[int], max_model_len: int = 100, **settings: object) -> tuple[str | None, object]:
    """(finish reason, stop reason) of a request with the prompt [5, 5, 5] that has generated `outputs`."""
    request = Request(make_request("a", [5, 5, 5], SamplingParams(**settings)), max_model_len)
    request.token_ids += outputs
    ended = check_stop(request)
    assert ended is request.status.is_finished
    reason = request.status.finish_reason
    return reason and str(reason), request.stop_reason


def test_a_token_like_any_other_ends_nothing() -> None:
    assert stopped([1, 2, 3], max_tokens=4) == (None, None)


def test_the_end_of_sequence_ends_a_request_and_is_no_stop_reason() -> None:
    assert stopped([1, EOS]) == ("stop", None)


def test_a_stop_token_is_named_as_the_reason() -> None:
    assert stopped([1, 7], stop_token_ids=[6, 7]) == ("stop", 7)


def test_only_the_last_token_is_looked_at() -> None:
    assert stopped([EOS, 7, 1], stop_token_ids=[7]) == (None, None)


def test_an_ignored_end_of_sequence_may_still_be_a_stop_token() -> None:
    assert stopped([EOS], ignore_eos=True) == (None, None)
    assert stopped([EOS], ignore_eos=True, stop_token_ids=[EOS]) == ("stop", EOS)


def test_the_request_and_the_model_limit_the_length() -> None:
    assert stopped([1, 2], max_tokens=2) == ("length", None)
    assert stopped([1, 2], max_model_len=5) == ("length", None)
    assert stopped([1, 2], max_model_len=6, max_tokens=3) == (None, None)


def test_repetition_ends_a_request_and_says_so() -> None:
    assert stopped([8, 9, 8, 9], repetition_detection=STUTTER) == ("repetition", "repetition_detected")


def test_the_prompt_is_no_part_of_a_repetition() -> None:
    assert stopped([5], repetition_detection=STUTTER) == (None, None)
    assert stopped([5, 5], repetition_detection=STUTTER) == ("repetition", "repetition_detected")


def test_end_of_sequence_comes_before_stop_tokens_before_length_before_repetition() -> None:
    everything = {"stop_token_ids": [EOS, 7], "max_tokens": 2, "repetition_detection": STUTTER}
    assert stopped([EOS, EOS], **everything) == ("stop", None)
    assert stopped([7, 7], **everything) == ("stop", 7)
    assert stopped([8, 8], **everything) == ("length", None)
    assert stopped([8, 8], **everything | {"max_tokens": 3}) == ("repetition", "repetition_detected")


def test_min_tokens_holds_back_repetition_and_nothing_else() -> None:
    early = {"min_tokens": 5, "repetition_detection": STUTTER}
    assert stopped([8, 8], **early) == (None, None)
    assert stopped([1, 2, 3, 8, 8], **early) == ("repetition", "repetition_detected")
    assert stopped([EOS], **early) == ("stop", None)
    assert stopped([7], **early, stop_token_ids=[7]) == ("stop", 7)
    assert stopped([1, 2], **early, max_model_len=5) == ("length", None)


def in_plain_words(token_ids: list[int], detection: RepetitionDetectionParams) -> bool:
    for size in range(max(detection.min_pattern_size, 1), detection.max_pattern_size + 1):
        pattern = token_ids[-size:]
        if len(pattern) == size and token_ids[-size * detection.min_count :] == pattern * detection.min_count:
            return True
    return False


def test_repetitions_are_found_as_in_plain_words() -> None:
    rng = random.Random(3)
    num_found = 0
    for _ in range(5000):
        smallest = rng.randint(0, 4)
        detection = RepetitionDetectionParams(
            max_pattern_size=rng.randint(max(smallest, 1), 5),
            min_pattern_size=smallest,
            min_count=rng.randint(2, 4),
        )
        token_ids = [rng.randint(0, 1) for _ in range(rng.randint(0, 16))]
        expected = in_plain_words(token_ids, detection)
        assert ends_in_repetition(token_ids, detection) is expected
        num_found += expected
    assert 500 < num_found < 4500


@pytest.mark.parametrize("token_ids", [[], [1], [1, 1, 1, 1]], ids=str)
def test_a_largest_pattern_of_nothing_turns_detection_off(token_ids: list[int]) -> None:
    assert not ends_in_repetition(token_ids, RepetitionDetectionParams())


def test_a_status_is_left_alone_while_the_request_goes_on() -> None:
    request = Request(make_request("a", [1]), 100)
    request.status = RequestStatus.RUNNING
    request.token_ids.append(4)
    assert not check_stop(request)
    assert request.status is RequestStatus.RUNNING
