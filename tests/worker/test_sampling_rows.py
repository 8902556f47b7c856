"""Sampling parameters by row."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.types.params import SamplingParams
from octavo.types.sampling import NO_LOGPROBS, SamplingMetadata
from octavo.worker.sampling_rows import SamplingRows


def metadata_for(params: SamplingParams, vocab_size: int = 50) -> SamplingMetadata:
    rows = SamplingRows(4, vocab_size)
    rows.set_row(2, params)
    return rows.get_metadata(np.array([2]), np.array([7]))


def test_parameters_arrive_as_they_were_given() -> None:
    metadata = metadata_for(
        SamplingParams(temperature=0.5, top_k=3, top_p=0.25, min_p=0.125, seed=11, logprobs=4)
    )
    assert metadata.temperature.tolist() == [0.5]
    assert metadata.top_k.tolist() == [3]
    assert metadata.top_p.tolist() == [0.25]
    assert metadata.min_p.tolist() == [0.125]
    assert metadata.seeds.tolist() == [11]
    assert metadata.num_logprobs.tolist() == [4]
    assert metadata.positions.tolist() == [7]


@pytest.mark.parametrize("temperature", [0.0, 1e-6])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    assert metadata_for(SamplingParams(temperature=temperature, seed=1)).temperature.tolist() == [0]


@pytest.mark.parametrize(
    ("logprobs", "expected"), [(None, NO_LOGPROBS), (0, 0), (5, 5), (-1, 50)], ids=lambda value: str(value)
)
def test_logprobs_are_counted_and_all_of_them_are_the_vocabulary(logprobs: int | None, expected: int) -> None:
    assert metadata_for(SamplingParams(logprobs=logprobs, seed=1)).num_logprobs.tolist() == [expected]


@pytest.mark.parametrize(("seed", "stored"), [(2**64 - 1, 2**64 - 1), (-5, 2**64 - 5), (0, 0)])
def test_every_seed_is_kept_to_64_bits(seed: int, stored: int) -> None:
    assert metadata_for(SamplingParams(seed=seed)).seeds.tolist() == [stored]


def test_a_row_is_overwritten_whole() -> None:
    rows = SamplingRows(2, 50)
    plain = rows.get_metadata(np.array([1]), np.array([0]))
    rows.set_row(0, SamplingParams(temperature=0.5, top_k=3, top_p=0.25, min_p=0.125, seed=11, logprobs=4))
    rows.set_row(0, SamplingParams(temperature=0.0, seed=0))
    after = rows.get_metadata(np.array([0]), np.array([0]))
    for name in SamplingMetadata.__struct_fields__:
        np.testing.assert_array_equal(getattr(after, name), getattr(plain, name), name)


def test_rows_are_gathered_in_the_order_asked_for_and_copied() -> None:
    rows = SamplingRows(3, 50)
    for row in range(3):
        rows.set_row(row, SamplingParams(seed=100 + row))
    metadata = rows.get_metadata(np.array([2, 0]), np.array([5, 6]))
    rows.set_row(2, SamplingParams(seed=9))
    assert metadata.seeds.tolist() == [102, 100]
