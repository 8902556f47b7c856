"""The kernels that go row by row, against their formulas in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.native.program import compile_program
from octavo.ops import Ops, Rope, RopeStyle
from octavo.weights.dequantize import dequantize
from octavo.weights.formats import format_named
from octavo.weights.weight import Weight
from tests.models.tiny_llama import make_weight

NUM_TOKENS = 7
EPS = 1e-5
# Values are about 1, sums short and exponentials within 3e-7: float32 is right to a few millionths.
TOLERANCE = 5e-6


def random_array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def run(devices: dict[int, Any], function: Any, **arrays: np.ndarray) -> np.ndarray:
    """What `function` gives, after checking that it is the same bits on any number of threads."""
    named = {name: arrays.pop(name) for name in ("token_ids", "positions") if name in arrays}
    num_tokens = len(next(iter({**named, **arrays}.values())))
    results = [
        compile_program(device, function, {name: array.shape[1] for name, array in arrays.items()}).run(
            num_tokens, **named, **arrays
        )[0]
        for device in devices.values()
    ]
    assert all(np.array_equal(each, results[0]) for each in results)
    return results[0]


@pytest.mark.parametrize("format_name", ["F32", "F16", "BF16", "Q4_1", "Q8_0", "Q6_K"])
def test_embedding_gives_rows_of_its_table(devices: dict[int, Any], format_name: str) -> None:
    format = format_named(format_name)
    k, num_rows = 512, 9
    random = np.random.default_rng(0)
    # Small bytes are small finite numbers in every format, also where they are scales.
    data = random.integers(0, 50, (num_rows, format.row_bytes(k)), np.uint8)
    table = Weight("table", (num_rows, k), format, data)
    token_ids = np.array([3, 0, 8, 3, 5], np.int32)
    rows = run(devices, lambda ops, ids, positions: ops.embedding(ids, table), token_ids=token_ids)
    assert np.array_equal(rows, dequantize(format, data).reshape(num_rows, k)[token_ids])


def test_embedding_multiplies_rows_by_its_scale(devices: dict[int, Any]) -> None:
    array, token_ids = random_array(9, 40), np.array([3, 0, 8, 3, 5], np.int32)
    table = make_weight(array)
    rows = run(devices, lambda ops, ids, positions: ops.embedding(ids, table, 25.3), token_ids=token_ids)
    assert np.array_equal(rows, array[token_ids] * np.float32(25.3))


@pytest.mark.parametrize("size", [16, 20, 64, 576])
@pytest.mark.parametrize("num_heads", [1, 3])
def test_rms_norm_divides_each_head_by_its_root_mean_square(
    devices: dict[int, Any], size: int, num_heads: int
) -> None:
    weight = make_weight(random_array(size, seed=1))

    def function(ops: Ops, token_ids: Any, positions: Any, x: Any) -> Any:
        (heads,) = ops.split_heads(x, (num_heads,))
        return ops.rms_norm(heads, weight, EPS)

    x = random_array(NUM_TOKENS, num_heads * size)
    heads = x.reshape(NUM_TOKENS, num_heads, size).astype(np.float64)
    exact = heads / np.sqrt((heads**2).mean(axis=-1, keepdims=True) + EPS) * weight.to_float32()
    assert_close(run(devices, function, x=x), exact.reshape(x.shape))


@pytest.mark.parametrize("num_heads", [1, 3])
def test_rms_norm_adds_its_residual(devices: dict[int, Any], num_heads: int) -> None:
    """Which are columns of another value, and as many."""
    size = 20
    weight = make_weight(random_array(size, seed=1))

    def norm(ops: Ops, x: Any, residual: Any = None) -> Any:
        (heads,) = ops.split_heads(x, (num_heads,))
        return ops.rms_norm(heads, weight, EPS, residual)

    def function(ops: Ops, token_ids: Any, positions: Any, x: Any, both: Any) -> Any:
        return norm(ops, x, ops.split_heads(both, (1, 1))[1])

    x, both = (random_array(NUM_TOKENS, count * num_heads * size, seed=count) for count in (1, 2))
    normed = run(devices, lambda ops, ids, positions, x: norm(ops, x), x=x)
    assert np.array_equal(run(devices, function, x=x, both=both), normed + both[:, num_heads * size :])


@pytest.mark.parametrize("size", [16, 24, 100])
def test_silu_and_mul_takes_the_left_half_as_the_gate(devices: dict[int, Any], size: int) -> None:
    x = random_array(NUM_TOKENS, 2 * size)
    gate, up = np.split(x.astype(np.float64), 2, axis=1)
    actual = run(devices, lambda ops, ids, positions, x: ops.silu_and_mul(x), x=x)
    assert_close(actual, gate / (1 + np.exp(-gate)) * up)


@pytest.mark.parametrize("size", [16, 24, 100])
def test_gelu_tanh_and_mul_takes_the_left_half_as_the_gate(devices: dict[int, Any], size: int) -> None:
    x = random_array(NUM_TOKENS, 2 * size)
    gate, up = np.split(x.astype(np.float64), 2, axis=1)
    actual = run(devices, lambda ops, ids, positions, x: ops.gelu_tanh_and_mul(x), x=x)
    assert_close(actual, gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up)


@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_tanh_and_mul"])
def test_activations_of_extreme_numbers_are_zero_or_the_number(devices: dict[int, Any], name: str) -> None:
    extremes = np.array([89, 100, 1000, 1e30, 3e38, np.finfo(np.float32).max], np.float32)
    gate = np.concatenate([-extremes, [0], extremes]).astype(np.float32)
    x = np.concatenate([gate, np.ones_like(gate)])[None]
    actual = run(devices, lambda ops, ids, positions, x: getattr(ops, name)(x), x=x)
    np.testing.assert_array_equal(actual[0], np.maximum(gate, 0))


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize(("head_size", "rotary_size"), [(64, 64), (32, 16), (16, 10), (20, 20), (256, 256)])
def test_rope_turns_pairs_by_their_angles(
    devices: dict[int, Any], style: RopeStyle, head_size: int, rotary_size: int
) -> None:
    frequencies = (10000.0 ** -np.linspace(0, 1, rotary_size // 2)).astype(np.float32)
    rope = Rope(frequencies, style, magnitude=1.25)
    positions = np.array([0, 1, 5, 100, 1000, 4095, 2**20], np.int64)

    def function(ops: Ops, token_ids: Any, positions: Any, x: Any) -> Any:
        (heads,) = ops.split_heads(x, (2,))
        return ops.rope(heads, positions, rope)

    x = random_array(NUM_TOKENS, 2 * head_size)
    actual = run(devices, function, positions=positions, x=x)

    # The angles are products in float32, as in the code that models are trained with.
    angles = (positions.astype(np.float32)[:, None, None] * frequencies).astype(np.float64)
    half = rotary_size // 2
    first, second = slice(0, half), slice(half, rotary_size)
    if style == "interleaved":
        first, second = slice(0, rotary_size, 2), slice(1, rotary_size, 2)
    heads = x.reshape(NUM_TOKENS, 2, head_size).astype(np.float64)
    exact = heads.copy()
    exact[..., first] = 1.25 * (heads[..., first] * np.cos(angles) - heads[..., second] * np.sin(angles))
    exact[..., second] = 1.25 * (heads[..., second] * np.cos(angles) + heads[..., first] * np.sin(angles))
    assert_close(actual, exact.reshape(x.shape))


def assert_close(actual: np.ndarray, exact: np.ndarray) -> None:
    np.testing.assert_allclose(actual, exact, rtol=TOLERANCE, atol=TOLERANCE)
