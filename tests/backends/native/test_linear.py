"""Linear maps in every format, against products in float64, and against themselves: the same row must be the
same bits whatever rows are beside it and however many threads there are.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from octavo.backends.native.library import load_library
from octavo.backends.native.program import Program, compile_program
from octavo.bench.weights import random_weight
from octavo.ops import Linear
from octavo.weights.formats import format_named
from octavo.weights.weight import Weight
from tests import native

PLAIN = tuple(format.name for format in native.FORMATS if format.block_size == 1)
BLOCKS_OF_32 = tuple(format.name for format in native.FORMATS if format.block_size == 32)
SUPER_BLOCKS = tuple(format.name for format in native.FORMATS if format.block_size == 256)
FORMATS = tuple(format.name for format in native.FORMATS)
# Kernels differ by the number of rows: one, few, whole tiles and rests of them.
NUM_ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 32, 33, 70)


def inputs(format_name: str) -> int:
    """A number of inputs that leaves a rest wherever the format allows one."""
    return {"F32": 100, "F16": 101, "BF16": 77}.get(format_name, 768 if format_name in SUPER_BLOCKS else 544)


def rows(num_rows: int, num_columns: int) -> np.ndarray:
    x = np.random.default_rng(num_columns).standard_normal((70, num_columns), np.float32)
    x[1, :32] = 0  # a block of zeros has no scale
    return x[:num_rows]


def vector(name: str, values: np.ndarray) -> Weight:
    return Weight(name, values.shape, format_named("F32"), values.view(np.uint8).reshape(1, -1))


def random_vector(name: str, size: int) -> Weight:
    return vector(name, np.random.default_rng(size).standard_normal(size).astype(np.float32))


def compile_linear(device: Any, *weights: Weight) -> Program:
    layer = Linear(weights)
    return compile_program(
        device, lambda ops, token_ids, positions, x: ops.linear(x, layer), {"x": weights[0].shape[1]}
    )


def largest_error(format_name: str, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """What rounding may cost each output: of the activations, then of sums in float32 (1e-5 of their
    terms).
    """
    magnitude = np.abs(x) @ np.abs(weights).T
    if format_name == "BF16":
        return magnitude * 2**-8
    if format_name in PLAIN:
        return magnitude * 1e-5
    half_steps = np.abs(x.reshape(len(x), -1, 32)).max(axis=-1) / 127 / 2
    return np.repeat(half_steps, 32, axis=1) @ np.abs(weights).T * 1.001 + magnitude * 1e-5


@pytest.mark.parametrize("format_name", FORMATS)
def test_products_are_those_of_the_numbers_in_the_file(format_name: str, device: Any) -> None:
    weight = random_weight(format_name, 40, inputs(format_name))
    values = weight.to_float32().astype(np.float64)
    for num_rows in (1, 6, 35):
        x = rows(num_rows, weight.shape[1])
        (y,) = compile_linear(device, weight).run(num_rows, x=x)
        errors = np.abs(y - x.astype(np.float64) @ values.T)
        assert (errors <= largest_error(format_name, x.astype(np.float64), values)).all()


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_row_is_the_same_bits_in_any_company(format_name: str, devices: dict[int, Any]) -> None:
    weight = random_weight(format_name, 200, inputs(format_name))
    results = []
    for device in devices.values():
        program = compile_linear(device, weight)
        for num_rows in NUM_ROWS:
            (y,) = program.run(num_rows, x=rows(num_rows, weight.shape[1]))
            results.append(np.array(y))
    longest = max(results, key=len)
    for result in results:
        np.testing.assert_array_equal(result, longest[: len(result)])


@pytest.mark.parametrize("format_name", ["Q4_0", "Q6_K", "BF16", "F32"])
def test_the_last_rows_of_a_step_that_is_computed_in_pieces_are_as_the_others(
    format_name: str, devices: dict[int, Any]
) -> None:
    """With so many inputs a piece has 32 rows; 33 to 40 leave a few, 41 some more."""
    weight = random_weight(format_name, 20, 16384)
    x = rows(70, weight.shape[1])
    (longest,) = compile_linear(devices[1], weight).run(70, x=x)
    for device in devices.values():
        program = compile_linear(device, weight)
        for num_rows in (1, 33, 40, 41, 65):
            (y,) = program.run(num_rows, x=x[:num_rows])
            np.testing.assert_array_equal(y, longest[:num_rows])


@pytest.mark.parametrize("num_outputs", [1, 15, 16, 17, 130])
@pytest.mark.parametrize("num_rows", [1, 20])
def test_any_number_of_outputs_is_written_and_nothing_else(
    num_outputs: int, num_rows: int, device: Any
) -> None:
    """The outputs lie between other columns of a buffer, all of which an embedding has filled."""
    weight, x, margin = random_weight("Q4_1", num_outputs, 96), rows(num_rows, 96), 20
    alone = compile_linear(device, weight)
    filling = rows(1, margin + num_outputs + margin)
    program = load_library().Program(device)
    all_columns = (program.add_buffer(0, filling.size), 0, filling.size)
    table = filling.view(np.uint8)
    program.embedding(format="F32", table=table, k=filling.size, scale=1.0, out=all_columns)
    program.linear(
        x=(program.add_input("x", 96), 0, 96),
        norm_weight=None,
        norm_eps=0,
        parts=[alone.weights.matrix(weight)],
        activation="none",
        residual=None,
        out=(all_columns[0], margin, num_outputs),
    )
    program.add_output(all_columns)
    (y,) = program.run(num_rows, np.zeros(num_rows, np.int32), None, [], [x])
    expected = np.repeat(filling, num_rows, axis=0)
    (expected[:, margin:-margin],) = alone.run(num_rows, x=x)
    np.testing.assert_array_equal(y, expected)


def test_weights_of_different_formats_are_stacked(device: Any) -> None:
    weights = tuple(
        random_weight(name, 20 + index, 256) for index, name in enumerate(("Q6_K", "BF16", "Q4_0", "F16"))
    )
    for num_rows in (1, 9, 40):
        x = rows(num_rows, 256)
        (y,) = compile_linear(device, *weights).run(num_rows, x=x)
        apart = [compile_linear(device, weight).run(num_rows, x=x)[0] for weight in weights]
        np.testing.assert_array_equal(y, np.concatenate(apart, axis=1))


@pytest.mark.parametrize("num_rows", [1, 5, 40])
def test_bias_and_residual_are_added_in_this_order(num_rows: int, device: Any) -> None:
    weights = (random_weight("Q8_0", 30, 64), random_weight("Q4_0", 21, 64))
    biases = (random_vector("first", 30), random_vector("second", 21))
    layer = Linear(weights, biases)
    program = compile_program(
        device,
        lambda ops, token_ids, positions, x, residual: ops.linear(x, layer, residual=residual),
        {"x": 64, "residual": 51},
    )
    x, residual = rows(num_rows, 64), rows(num_rows, 51)
    (y,) = program.run(num_rows, x=x, residual=residual)
    (product,) = compile_linear(device, *weights).run(num_rows, x=x)
    bias = np.concatenate([each.to_float32() for each in biases])
    np.testing.assert_array_equal(y, product + bias + residual)


@pytest.mark.parametrize("format_name", ["Q4_1", "Q6_K", "BF16", "F32"])
@pytest.mark.parametrize("num_rows", [1, 5, 40])
@pytest.mark.parametrize("with_biases", [False, True])
@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_tanh_and_mul"])
def test_gated_maps_give_what_the_operations_give_one_by_one(
    format_name: str, num_rows: int, with_biases: bool, name: str, device: Any
) -> None:
    gate, up = random_weight(format_name, 45, 256), random_weight(format_name, 45, 256)
    up = Weight("up", up.shape, up.format, np.ascontiguousarray(up.data[::-1]))
    biases = (random_vector("gate", 45), random_vector("up", 45)) if with_biases else ()
    layer = Linear((gate, up), biases)

    def gated(ops: Any, token_ids: Any, positions: Any, x: Any) -> Any:
        return getattr(ops, name)(ops.linear(x, layer))

    def activate(ops: Any, token_ids: Any, positions: Any, x: Any) -> Any:
        return getattr(ops, name)(x)

    x = rows(num_rows, 256)
    (y,) = compile_program(device, gated, {"x": 256}).run(num_rows, x=x)
    plain = compile_program(device, lambda ops, token_ids, positions, x: ops.linear(x, layer), {"x": 256})
    (both,) = plain.run(num_rows, x=x)
    (expected,) = compile_program(device, activate, {"x": 90}).run(num_rows, x=both)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 20])
def test_a_norm_before_a_map_is_folded_into_it_and_changes_no_bit(num_rows: int, device: Any) -> None:
    weight, norm = random_weight("Q4_0", 48, 96), random_vector("norm", 96)
    layer = Linear((weight,))

    def folded(ops: Any, token_ids: Any, positions: Any, x: Any) -> Any:
        return ops.linear(ops.rms_norm(x, norm, 1e-5), layer)

    def apart(ops: Any, token_ids: Any, positions: Any, x: Any) -> Any:
        normed = ops.rms_norm(x, norm, 1e-5)
        return ops.linear(normed, layer), normed

    x = rows(num_rows, 96)
    (y,) = compile_program(device, folded, {"x": 96}).run(num_rows, x=x)
    expected, _ = compile_program(device, apart, {"x": 96}).run(num_rows, x=x)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("format_name", ["Q4_0", "BF16", "F32"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_a_number_shows_in_its_own_row_only(format_name: str, bad: float, device: Any) -> None:
    weight = random_weight(format_name, 32, 64)
    for num_rows in (3, 20):
        x = np.array(rows(num_rows, 64))
        (expected,) = compile_linear(device, weight).run(num_rows, x=x)
        x[2, 5] = bad
        (y,) = compile_linear(device, weight).run(num_rows, x=x)
        assert not np.isfinite(y[2]).any()
        others = np.arange(num_rows) != 2
        np.testing.assert_array_equal(y[others], expected[others])


def test_activations_are_rounded_to_bf16_for_bf16_weights(device: Any) -> None:
    weight = random_weight("BF16", 16, 32)
    x = rows(4, 32)
    rounded = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    (y,) = compile_linear(device, weight).run(4, x=x)
    (expected,) = compile_linear(device, weight).run(4, x=rounded)
    np.testing.assert_array_equal(y, expected)
