from collections.abc import Callable

import numpy as np
import pytest

from octavo.sampling.filters import apply_min_p, apply_top_k, apply_top_p, most_likely

PROBS = [0.1, 0.4, 0.05, 0.3, 0.15]  # token 1 first, then 3, 4, 0, 2


def kept(apply: Callable[[np.ndarray, float], None], setting: float, probs: list[float]) -> list[int]:
    logits = np.log(np.array(probs))
    before = logits.copy()
    apply(logits, setting)
    ids = np.flatnonzero(logits > -np.inf)
    assert logits[ids].tolist() == before[ids].tolist()
    return ids.tolist()


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (1e-4, [1]),
        (0.39, [1]),
        (0.41, [1, 3]),
        (0.69, [1, 3]),
        (0.71, [1, 3, 4]),
        (0.94, [0, 1, 3, 4]),
        (0.96, [0, 1, 2, 3, 4]),
    ],
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, expected: list[int]) -> None:
    assert kept(apply_top_p, top_p, PROBS) == expected


def test_top_p_takes_a_set_whose_mass_is_exactly_enough() -> None:
    assert kept(apply_top_p, 0.5, [0.25, 0.25, 0.25, 0.25]) == [0, 1]


@pytest.mark.parametrize("top_p", [0.5, 0.9, 1 - 2.0**-24])
def test_top_p_over_a_flat_distribution_keeps_that_share_of_the_vocabulary(top_p: float) -> None:
    vocab = 2**12
    assert len(kept(apply_top_p, top_p, [1 / vocab] * vocab)) == np.ceil(top_p * vocab)


@pytest.mark.parametrize(
    ("top_k", "expected"),
    [
        (1, [1]),
        (2, [1, 3]),
        (4, [0, 1, 3, 4]),
        (5, [0, 1, 2, 3, 4]),
        (6, [0, 1, 2, 3, 4]),
        (10**9, [0, 1, 2, 3, 4]),
    ],
)
def test_top_k_keeps_k_tokens_and_more_than_the_vocabulary_is_all(top_k: int, expected: list[int]) -> None:
    assert kept(apply_top_k, top_k, PROBS) == expected


@pytest.mark.parametrize(
    ("min_p", "expected"),
    [(0.1, [0, 1, 2, 3, 4]), (0.2, [0, 1, 3, 4]), (0.7, [1, 3]), (0.76, [1]), (1.0, [1])],
)
def test_min_p_keeps_tokens_by_their_share_of_the_likeliest(min_p: float, expected: list[int]) -> None:
    assert kept(apply_min_p, min_p, PROBS) == expected


@pytest.mark.parametrize(("apply", "setting"), [(apply_min_p, 1.0), (apply_top_k, 1), (apply_top_p, 1e-4)])
def test_between_equals_the_smaller_id_stays(
    apply: Callable[[np.ndarray, float], None], setting: float
) -> None:
    assert kept(apply, setting, [0.1, 0.3, 0.3, 0.3]) == [1]


def test_ties_at_the_edge_of_top_k_and_top_p_go_to_the_smaller_ids() -> None:
    assert kept(apply_top_k, 3, [0.2, 0.2, 0.4, 0.2]) == [0, 1, 2]
    assert kept(apply_top_p, 0.7, [0.2, 0.2, 0.4, 0.2]) == [0, 1, 2]


def test_masked_tokens_stay_masked() -> None:
    assert kept(apply_top_k, 3, [0.0, 0.6, 0.0, 0.4]) == [1, 3]
    assert kept(apply_top_p, 0.99, [0.0, 0.6, 0.0, 0.4]) == [1, 3]
    assert kept(apply_min_p, 0.01, [0.0, 0.6, 0.0, 0.4]) == [1, 3]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 99])
def test_most_likely_is_ordered_by_value_and_then_by_id(count: int) -> None:
    logits = np.array([1.0, 3.0, 2.0, 3.0])
    assert most_likely(logits, count).tolist() == [1, 3, 2, 0][:count]


def test_most_likely_orders_many_equals_by_id() -> None:
    logits = np.random.default_rng(5).integers(0, 9, 5000).astype(np.float64)
    expected = sorted(range(5000), key=lambda token: (-logits[token], token))
    for count in (700, 5000):
        assert most_likely(logits, count).tolist() == expected[:count]


# np.log(0) is how these tests write a masked token.
pytestmark = pytest.mark.filterwarnings("ignore:divide by zero")
