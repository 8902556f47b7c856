from __future__ import annotations

import numpy as np
import pytest

from octavo.bench.weights import PLAIN_FORMATS, SCALE_OFFSETS, random_weight
from octavo.errors import UnsupportedError, WeightError

FORMATS = (*PLAIN_FORMATS, *SCALE_OFFSETS)


@pytest.mark.parametrize("format_name", FORMATS)
def test_random_weights_are_numbers_of_an_ordinary_size(format_name: str) -> None:
    values = random_weight(format_name, 8, 512).to_float32()
    assert values.shape == (8, 512)
    assert np.isfinite(values).all()
    # The largest factor on a scale is 128 * 32 (Q6_K); a scale at a wrong offset is up to 65504.
    assert 0 < np.abs(values).max() < 64
    assert len(np.unique(values)) > 100


def test_random_weights_are_the_same_every_time() -> None:
    first, second = random_weight("Q4_K", 4, 256), random_weight("Q4_K", 4, 256)
    assert (first.data == second.data).all()


def test_a_format_without_random_weights_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"no random weights in format 'IQ2_XXS'.*Q4_K"):
        random_weight("IQ2_XXS", 4, 256)


def test_columns_must_be_whole_blocks() -> None:
    with pytest.raises(WeightError, match="multiple of 256"):
        random_weight("Q4_K", 4, 576)
