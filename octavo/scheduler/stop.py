"""Decides from its tokens whether a request ends. (The front end finds stop strings in the text.)"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.scheduler.request import Request, RequestStatus
from octavo.types.params import RepetitionDetectionParams

REPETITION_STOP_REASON = "repetition_detected"


def check_stop(request: Request) -> bool:
    """Whether the last token of `request` ends it. Sets `status` and `stop_reason` if so.

    The order is: end of sequence, stop tokens, length, repetition. Only repetition checks `min_tokens` here:
    before that, end and stop tokens are not sampled (`logits_control`).
    """
    token_id = request.token_ids[-1]
    if token_id in request.eos_token_ids:
        request.status = RequestStatus.FINISHED_STOPPED
    elif token_id in request.stop_token_ids:
        request.status = RequestStatus.FINISHED_STOPPED
        request.stop_reason = token_id
    elif request.num_tokens >= request.max_length:
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
    elif _repeats_itself(request):
        request.status = RequestStatus.FINISHED_REPETITION
        request.stop_reason = REPETITION_STOP_REASON
    else:
        return False
    return True


def _repeats_itself(request: Request) -> bool:
    detection = request.sampling_params.repetition_detection
    if detection is None or request.num_output_tokens < request.sampling_params.min_tokens:
        return False
    most = detection.max_pattern_size * detection.min_count  # longer outputs need no look at earlier tokens
    start = max(request.num_prompt_tokens, request.num_tokens - most)
    return ends_in_repetition(request.token_ids[start:], detection)


def ends_in_repetition(token_ids: Sequence[int], detection: RepetitionDetectionParams) -> bool:
    """Whether `token_ids` end in `min_count` or more copies of one pattern of an allowed size."""
    num_tokens = len(token_ids)
    for size in range(max(detection.min_pattern_size, 1), detection.max_pattern_size + 1):
        span = size * detection.min_count
        if span > num_tokens:
            return False
        # A sequence of period `size` equals itself shifted by `size`.
        if token_ids[num_tokens - span + size :] == token_ids[num_tokens - span : num_tokens - size]:
            return True
    return False
