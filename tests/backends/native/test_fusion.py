"""Each pass: what it brings together, and what it must leave alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from octavo.backends.native.fusion import fold_norms, fold_ropes, fuse, fuse_gates
from octavo.backends.native.operations import (
    ActivateAndMul,
    Attention,
    AttentionInputs,
    Embedding,
    Linear,
    Recording,
    ReplaceRows,
    RmsNorm,
    Rope,
    RopeAngles,
)
from octavo.backends.native.recorder import record
from octavo.models.load import load_model, spec_from_config
from octavo.models.model import forward
from octavo.ops import AttentionLayer, Ops
from octavo.ops import Linear as LinearLayer
from octavo.ops import Rope as RopeLayer
from octavo.weights.formats import format_named
from octavo.weights.weight import Weight
from tests.models.tiny_llama import ArraySource, make_config, make_model, make_weight
from tests.tiny_gemma3 import CONFIG, make_arrays

SIZE = 32
ATTENTION = AttentionLayer(index=0, num_heads=4, num_kv_heads=2, head_size=16, scale=0.25)
NORM = make_weight(np.ones(SIZE, np.float32), "norm")
EPS = 1e-6


def matrix(num_outputs: int = SIZE, num_inputs: int = SIZE, format_name: str = "F32") -> Weight:
    format = format_named(format_name)
    data = np.zeros((num_outputs, format.row_bytes(num_inputs)), np.uint8)
    return Weight("matrix", (num_outputs, num_inputs), format, data)


def square() -> LinearLayer:
    return LinearLayer((matrix(),))


def rope() -> RopeLayer:
    return RopeLayer(np.ones(8, np.float32), "interleaved")


def recorded(function: Callable[..., Any], num_columns: int = SIZE) -> Recording:
    """`function(ops, x)` or `function(ops, x, positions)`."""
    wants_positions = function.__code__.co_argcount == 3
    return record(
        lambda ops, token_ids, positions, x: function(ops, x, *[positions] * wants_positions),
        {"x": num_columns},
    )


def kinds(recording: Recording) -> list[type]:
    return [type(operation) for operation in recording.operations]


def test_a_whole_model_is_six_instructions_a_layer() -> None:
    model = make_model(make_config(num_hidden_layers=2))
    layer = [Linear, AttentionInputs, Attention, Linear, Linear, Linear]
    first = [Linear, RopeAngles, *layer[1:]]
    assert kinds(fuse(record(partial(forward, model)))) == [Embedding, ReplaceRows, *first, *layer, RmsNorm]


def test_a_gemma3_layer_is_ten_instructions() -> None:
    model = load_model(ArraySource(make_arrays(CONFIG)), spec_from_config(CONFIG, "tiny"))
    attention = [Linear, RmsNorm, RmsNorm, AttentionInputs, Attention, Linear, RmsNorm]
    layer = [*attention, Linear, Linear, RmsNorm]
    local, full = ([*layer[:3], RopeAngles, *layer[3:]] for _ in range(2))  # each rope's angles once
    expected = [Embedding, ReplaceRows, *local, *layer * 4, *full, *layer, RmsNorm]
    assert kinds(fuse(record(partial(forward, model)))) == expected


# ------------------------------------------------------------------------------------------------------ norms


def test_a_norm_goes_into_every_linear_map_that_reads_it() -> None:
    def function(ops: Ops, x: Any) -> Any:
        h = ops.rms_norm(x, NORM, EPS)
        return ops.linear(h, square()), ops.linear(h, square())

    recording = fold_norms(recorded(function))
    assert kinds(recording) == [Linear, Linear]
    for linear in recording.operations:
        assert linear.x == recording.inputs["x"]
        assert (linear.norm.weight, linear.norm.eps) == (NORM, EPS)


def _norm_is_an_output(ops: Ops, x: Any) -> Any:
    h = ops.rms_norm(x, NORM, EPS)
    return h, ops.linear(h, square())


def _norm_is_a_residual_too(ops: Ops, x: Any) -> Any:
    h = ops.rms_norm(x, NORM, EPS)
    return ops.linear(h, square(), residual=h)


def _norm_is_read_by_something_else(ops: Ops, x: Any) -> Any:
    h = ops.rms_norm(x, NORM, EPS)
    return ops.linear(h, square()), ops.silu_and_mul(h)


def _norm_adds_a_residual(ops: Ops, x: Any) -> Any:
    return ops.linear(ops.rms_norm(x, NORM, EPS, residual=x), square())


def _norm_is_over_heads(ops: Ops, x: Any) -> Any:
    (heads,) = ops.split_heads(x, (2,))
    return ops.linear(ops.rms_norm(heads, make_weight(np.ones(16, np.float32)), EPS), square())


def _half_of_the_norm_is_read(ops: Ops, x: Any) -> Any:
    left, _ = ops.split_heads(ops.rms_norm(x, NORM, EPS), (1, 1))
    return ops.linear(left, LinearLayer((matrix(SIZE, SIZE // 2),)))


@pytest.mark.parametrize(
    "function",
    [
        _norm_is_an_output,
        _norm_is_a_residual_too,
        _norm_is_read_by_something_else,
        _norm_adds_a_residual,
        _norm_is_over_heads,
        _half_of_the_norm_is_read,
    ],
)
def test_a_norm_that_is_needed_as_it_is_stays(function: Callable[..., Any]) -> None:
    recording = recorded(function)
    assert fold_norms(recording) == recording


# ------------------------------------------------------------------------------------------------------ gates


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_a_gated_activation_goes_into_its_linear_map(activation: str) -> None:
    layer = LinearLayer((matrix(48), matrix(48)))
    recording = recorded(lambda ops, x: getattr(ops, f"{activation}_and_mul")(ops.linear(x, layer)))
    (gated,) = fuse_gates(recording).operations
    assert isinstance(gated, Linear)
    assert gated.activation == activation
    assert gated.layer is layer
    assert gated.out == recording.outputs[0]


def _is_read_twice(ops: Ops, x: Any) -> Any:
    y = ops.linear(x, LinearLayer((matrix(), matrix())))
    return ops.silu_and_mul(y), ops.silu_and_mul(y)


def _is_an_output(ops: Ops, x: Any) -> Any:
    y = ops.linear(x, LinearLayer((matrix(), matrix())))
    return ops.silu_and_mul(y), y


def _is_one_weight(ops: Ops, x: Any) -> Any:
    return ops.silu_and_mul(ops.linear(x, LinearLayer((matrix(2 * SIZE),))))


def _has_unequal_sizes(ops: Ops, x: Any) -> Any:
    return ops.silu_and_mul(ops.linear(x, LinearLayer((matrix(16), matrix(48)))))


def _has_unequal_formats(ops: Ops, x: Any) -> Any:
    return ops.silu_and_mul(ops.linear(x, LinearLayer((matrix(), matrix(format_name="Q8_0")))))


def _has_a_residual(ops: Ops, x: Any) -> Any:
    double = ops.linear(x, LinearLayer((matrix(2 * SIZE),)))
    return ops.silu_and_mul(ops.linear(x, LinearLayer((matrix(), matrix())), residual=double))


def _is_read_in_part(ops: Ops, x: Any) -> Any:
    half, _ = ops.split_heads(ops.linear(x, LinearLayer((matrix(), matrix()))), (1, 1))
    return ops.silu_and_mul(half)


@pytest.mark.parametrize(
    "function",
    [
        _is_read_twice,
        _is_read_in_part,
        _is_an_output,
        _is_one_weight,
        _has_unequal_sizes,
        _has_unequal_formats,
        _has_a_residual,
    ],
)
def test_an_activation_that_no_gated_kernel_computes_stays(function: Callable[..., Any]) -> None:
    recording = recorded(function)
    assert fuse_gates(recording) == recording
    assert ActivateAndMul in kinds(recording)


# ------------------------------------------------------------------------------------------------------ ropes


def attend(turn_q: RopeLayer | None, turn_k: RopeLayer | None) -> Recording:
    def function(ops: Ops, x: Any, positions: Any) -> Any:
        q, k, v = ops.split_heads(x, (4, 2, 2))
        q = ops.rope(q, positions, turn_q) if turn_q else q
        k = ops.rope(k, positions, turn_k) if turn_k else k
        return ops.attention(q, k, v, ATTENTION)

    return recorded(function, 128)


def test_queries_and_keys_are_turned_on_their_way_into_attention() -> None:
    turn = rope()
    recording = attend(turn, turn)
    angles, inputs, attention = fold_ropes(recording).operations
    assert (inputs.q.column, inputs.k.column, inputs.v.column) == (0, 64, 96)
    assert {inputs.q.value, inputs.k.value} == {recording.inputs["x"].value}
    assert (inputs.rope, inputs.angles) == (turn, angles.out)
    assert attention.q == inputs.out


def test_queries_and_keys_that_turn_differently_are_turned_before() -> None:
    for recording in (attend(rope(), rope()), attend(rope(), None), attend(None, rope())):
        assert fold_ropes(recording) == recording


def test_keys_that_two_layers_share_are_turned_before() -> None:
    turn = rope()

    def function(ops: Ops, x: Any, positions: Any) -> Any:
        q, k, v = ops.split_heads(x, (4, 2, 2))
        q, k = ops.rope(q, positions, turn), ops.rope(k, positions, turn)
        return ops.attention(q, k, v, ATTENTION), ops.attention(q, k, v, ATTENTION)

    recording = recorded(function, 128)
    assert fold_ropes(recording) == recording


def test_keys_that_are_values_too_are_turned_before() -> None:
    turn = rope()

    def function(ops: Ops, x: Any, positions: Any) -> Any:
        q, k = ops.split_heads(x, (4, 2))
        q, k = ops.rope(q, positions, turn), ops.rope(k, positions, turn)
        return ops.attention(q, k, k, ATTENTION)

    recording = recorded(function, 96)
    assert fold_ropes(recording) == recording


def test_normalized_queries_and_keys_are_turned_on_their_way_too() -> None:
    turn, norm = rope(), make_weight(np.ones(16, np.float32))

    def function(ops: Ops, x: Any, positions: Any) -> Any:
        q, k, v = ops.split_heads(x, (4, 2, 2))
        q, k = ops.rms_norm(q, norm, EPS), ops.rms_norm(k, norm, EPS)
        return ops.attention(ops.rope(q, positions, turn), ops.rope(k, positions, turn), v, ATTENTION)

    recording = fuse(recorded(function, 128))
    assert kinds(recording) == [RmsNorm, RmsNorm, RopeAngles, AttentionInputs, Attention]
    assert Rope not in kinds(recording)
