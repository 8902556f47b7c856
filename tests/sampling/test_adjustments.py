import math

import numpy as np
import pytest

from octavo.sampling.adjustments import apply_adjustments, apply_allowed, apply_bias, apply_penalties
from octavo.types.sampling import LogitBias, Penalties, SamplingMetadata, TokenLists
from tests.sampling.tables import penalty_tables

INF = math.inf


def lists(*rows: list[int]) -> TokenLists:
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows], dtype=np.int64)))
    return TokenLists(offsets, np.array([token for row in rows for token in row], np.int32))


def penalties(
    prompt: list[int],
    output: list[int],
    repetition: float = 1.0,
    frequency: float = 0.0,
    presence: float = 0.0,
) -> Penalties:
    """Of one row of logits."""
    settings = (np.array([setting], np.float32) for setting in (repetition, frequency, presence))
    return Penalties(*settings, rows=np.array([0]), **penalty_tables([(prompt, output)], 8))


def penalized(logits: list[float], of_row: Penalties) -> list[float]:
    changed = np.array([logits], np.float32)
    apply_penalties(changed, of_row)
    return changed[0].tolist()


class TestAllowed:
    def test_a_set_bit_allows_the_token_and_a_clear_one_does_not(self) -> None:
        logits = np.tile(np.arange(70, dtype=np.float32), (2, 1))
        allowed = np.array([[1 << 31, 1 << 0 | 1 << 5, 1 << 2], [2**32 - 1] * 3], np.uint32)
        apply_allowed(logits, allowed)
        assert np.flatnonzero(logits[0] > -INF).tolist() == [31, 32, 37, 66]
        assert logits[0, [31, 32, 37, 66]].tolist() == [31, 32, 37, 66]
        assert logits[1].tolist() == list(range(70))


class TestBias:
    def test_is_added_to_the_row_it_belongs_to(self) -> None:
        logits = np.zeros((3, 4), np.float32)
        apply_bias(logits, LogitBias(lists([1, 3], [], [0]), np.array([2, -1, 0.5], np.float32)))
        assert logits.tolist() == [[0, 2, 0, -1], [0, 0, 0, 0], [0.5, 0, 0, 0]]

    def test_of_a_token_listed_twice_is_added_twice(self) -> None:
        logits = np.zeros((1, 2), np.float32)
        apply_bias(logits, LogitBias(lists([1, 1]), np.array([2, 3], np.float32)))
        assert logits.tolist() == [[0, 5]]


class TestPenalties:
    def test_repetition_divides_positive_and_multiplies_other_logits_of_prompt_and_output(self) -> None:
        once = penalized([4, -4, 0, 3, -3], penalties([0, 2], [1, 0, 0], repetition=2))
        assert once == [2, -8, 0, 3, -3]

    def test_frequency_counts_the_output_alone(self) -> None:
        assert penalized([1, 1, 1], penalties([0, 0], [1, 2, 1], frequency=0.25)) == [1, 0.5, 0.75]

    def test_presence_is_taken_once_for_tokens_of_the_output_alone(self) -> None:
        assert penalized([1, 1, 1], penalties([0, 0], [1, 2, 1], presence=0.25)) == [1, 0.75, 0.75]

    def test_negative_ones_make_tokens_likelier(self) -> None:
        assert penalized([1, 1], penalties([], [1, 1], frequency=-1, presence=-2)) == [1, 5]

    def test_repetition_comes_before_the_others(self) -> None:
        row = penalties([], [0, 0], repetition=2, frequency=1, presence=0.5)
        assert penalized([4], row) == [4 / 2 - 2 * 1 - 0.5]

    def test_of_a_row_leave_other_rows_alone(self) -> None:
        logits = np.ones((3, 2), np.float32)
        ones = np.ones(3, np.float32)
        apply_penalties(
            logits,
            Penalties(
                ones,
                ones * 0,
                ones,
                rows=np.array([2, 1, 0]),
                **penalty_tables([([], [1]), ([], []), ([], [0])], 2),
            ),
        )
        assert logits.tolist() == [[0, 1], [1, 1], [1, 0]]

    def test_keep_masked_tokens_masked(self) -> None:
        row = penalties([0], [1], repetition=0.5, frequency=-1, presence=-1)
        assert penalized([-INF, -INF, 1], row) == [-INF, -INF, 1]

    @pytest.mark.parametrize(("logit", "repetition"), [(3e38, 1e-3), (-3e38, 1e3)])
    def test_that_overflow_give_infinity(self, logit: float, repetition: float) -> None:
        assert penalized([logit], penalties([0], [], repetition=repetition)) == [math.copysign(INF, logit)]


def test_the_order_is_mask_then_bias_then_penalties() -> None:
    one, nothing = np.ones(1, np.float32), np.zeros(1, np.float32)
    logits = np.array([[5, 5, 5]], np.float32)
    metadata = SamplingMetadata(
        temperature=one,
        top_k=nothing,
        top_p=one,
        min_p=nothing,
        seeds=nothing,
        positions=nothing,
        num_logprobs=nothing,
        allowed=np.array([[0b110]], np.uint32),
        bias=LogitBias(lists([0, 1]), np.array([9, -7], np.float32)),
        penalties=penalties([1], [], repetition=3),
    )
    apply_adjustments(logits, metadata)
    assert logits.tolist() == [[-INF, (5 - 7) * 3, 5]]
