from __future__ import annotations

import math

import numpy as np
import pytest

from octavo.models.rope import (
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    RopeSpec,
    YarnScaling,
    make_rope,
    yarn_magnitude,
)

THETA, SIZE = 10000.0, 64


def frequencies(scaling: RopeScaling, theta: float = THETA) -> np.ndarray:
    return make_rope(RopeSpec(theta, SIZE, scaling), "half").inverse_frequencies


def plain() -> np.ndarray:
    return make_rope(RopeSpec(THETA, SIZE), "half").inverse_frequencies


def test_plain_frequencies_fall_from_one_by_equal_ratios() -> None:
    found = plain()
    assert found.dtype == np.float32
    assert found[0] == 1.0
    np.testing.assert_allclose(found[1:] / found[:-1], THETA ** (-2 / SIZE), rtol=1e-6)


def test_linear_scaling_slows_every_frequency() -> None:
    np.testing.assert_allclose(frequencies(LinearScaling(4.0)), plain() / 4, rtol=1e-6)


@pytest.mark.parametrize(
    "scaling",
    [LinearScaling(1.0), Llama3Scaling(1.0, 1.0, 4.0, 8192), YarnScaling(1.0, 4096, magnitude=1.0)],
)
def test_factor_one_changes_nothing(scaling: RopeScaling) -> None:
    np.testing.assert_allclose(frequencies(scaling), plain(), rtol=1e-6)
    assert scaling.magnitude == 1.0


def test_llama3_scaling_keeps_fast_frequencies_and_slows_slow_ones() -> None:
    found = frequencies(Llama3Scaling(8.0, 1.0, 4.0, 2048))
    turns = 2048 * plain() / (2 * math.pi)
    np.testing.assert_allclose(found[turns >= 4], plain()[turns >= 4], rtol=1e-6)
    np.testing.assert_allclose(found[turns <= 1], plain()[turns <= 1] / 8, rtol=1e-6)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    assert np.all((found < plain())[between] & (found > plain() / 8)[between])


def test_yarn_scaling_keeps_fast_frequencies_and_slows_slow_ones() -> None:
    found = frequencies(YarnScaling(8.0, 2048, magnitude=1.0))
    turns = 2048 * plain() / (2 * math.pi)
    # The ramp is one feature wider at either end, as its ends are whole features.
    np.testing.assert_allclose(found[turns > 50], plain()[turns > 50], rtol=1e-6)
    np.testing.assert_allclose(found[turns < 0.5], plain()[turns < 0.5] / 8, rtol=1e-6)
    assert np.all(np.diff(found / plain()) <= 1e-6)


def test_yarn_ramp_without_width_is_a_step() -> None:
    found = frequencies(YarnScaling(8.0, 16, magnitude=1.0, beta_fast=4.0, beta_slow=3.0)) / plain()
    assert set(np.round(found, 6)) == {np.float32(1.0), np.float32(0.125)}


def test_divisors_divide_before_scaling() -> None:
    divisors = np.linspace(1, 8, SIZE // 2)
    found = make_rope(RopeSpec(THETA, SIZE, LinearScaling(2.0)), "interleaved", divisors)
    np.testing.assert_allclose(found.inverse_frequencies, plain() / divisors / 2, rtol=1e-6)
    assert found.style == "interleaved"
    assert found.rotary_size == SIZE


def test_yarn_magnitude_grows_with_the_logarithm_of_the_factor_and_is_one_below_one() -> None:
    assert yarn_magnitude(0.5) == yarn_magnitude(1.0) == 1.0
    assert yarn_magnitude(math.e) == pytest.approx(1.1)
    assert yarn_magnitude(math.e, 0.5) == pytest.approx(1.05)
