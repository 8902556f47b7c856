from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from octavo.backends.native.operations import (
    ActivateAndMul,
    Attention,
    AttentionInputs,
    Embedding,
    Linear,
    ReplaceRows,
    RmsNorm,
    Rope,
    RopeAngles,
)
from octavo.backends.native.recorder import record
from octavo.models.model import forward
from octavo.ops import AttentionLayer, Ops
from octavo.ops import Linear as LinearLayer
from octavo.ops import Rope as RopeLayer
from tests.models.tiny_llama import make_config, make_model, make_weight

LAYER = AttentionLayer(index=0, num_heads=4, num_kv_heads=2, head_size=16, scale=0.25)


def weight(*shape: int):  # noqa: ANN201
    return make_weight(np.zeros(shape, np.float32))


def rope(size: int = 16) -> RopeLayer:
    return RopeLayer(np.ones(size // 2, np.float32), "half")


def test_a_model_is_recorded_in_the_order_it_runs() -> None:
    model = make_model(make_config(num_hidden_layers=1))
    kinds = [type(operation) for operation in record(partial(forward, model)).operations]
    assert kinds == [
        Embedding,
        ReplaceRows,
        *(RmsNorm, Linear, RopeAngles, Rope, Rope, AttentionInputs, Attention, Linear),
        *(RmsNorm, Linear, ActivateAndMul, Linear),
        RmsNorm,
    ]


def test_values_have_the_columns_that_the_operation_gives() -> None:
    layer = LinearLayer((weight(24, 32), weight(8, 32)))
    table = weight(10, 32)

    def function(ops: Ops, token_ids: object, positions: object) -> object:
        return ops.silu_and_mul(ops.linear(ops.embedding(token_ids, table), layer))

    columns = [operation.out.num_columns for operation in record(function).operations]
    assert columns == [32, 32, 16]


def test_heads_are_views_and_cost_nothing() -> None:
    def function(ops: Ops, token_ids: object, positions: object, x: object) -> object:
        return ops.split_heads(x, (4, 2, 2))

    recording = record(function, {"x": 128})
    assert recording.operations == ()
    assert [(view.column, view.num_columns, view.head_size) for view in recording.outputs] == [
        (0, 64, 16),
        (64, 32, 16),
        (96, 32, 16),
    ]
    assert {view.value for view in recording.outputs} == {recording.inputs["x"].value}


def test_heads_of_heads_keep_their_place() -> None:
    def function(ops: Ops, token_ids: object, positions: object, x: object) -> object:
        _, rest = ops.split_heads(x, (2, 6))
        return ops.split_heads(rest, (4, 2))

    assert [view.column for view in record(function, {"x": 128}).outputs] == [32, 96]


def test_angles_are_computed_once_for_each_rope() -> None:
    first, second = rope(), rope(8)

    def function(ops: Ops, token_ids: object, positions: object, x: object) -> object:
        (heads,) = ops.split_heads(x, (4,))
        for each in (first, second, first, second):
            heads = ops.rope(heads, positions, each)
        return heads

    operations = record(function, {"x": 64}).operations
    angles = [operation for operation in operations if isinstance(operation, RopeAngles)]
    assert [(each.rope, each.out.num_columns) for each in angles] == [(first, 16), (second, 8)]
    turned = [operation.angles for operation in operations if isinstance(operation, Rope)]
    assert turned == [angles[0].out, angles[1].out, angles[0].out, angles[1].out]


@pytest.mark.parametrize("normalized", [False, True])
def test_head_size_survives_operations_on_heads(normalized: bool) -> None:
    norm = weight(16)

    def function(ops: Ops, token_ids: object, positions: object, x: object) -> object:
        (heads,) = ops.split_heads(x, (4,))
        if normalized:
            heads = ops.rms_norm(heads, norm, 1e-6)
        return ops.rope(heads, positions, rope())

    (out,) = record(function, {"x": 64}).outputs
    assert (out.num_columns, out.head_size) == (64, 16)


def test_attention_fills_the_cache_before_it_is_read() -> None:
    def function(ops: Ops, token_ids: object, positions: object, x: object) -> object:
        return ops.attention(*ops.split_heads(x, (4, 2, 2)), LAYER)

    inputs, attention = record(function, {"x": 128}).operations
    assert isinstance(inputs, AttentionInputs)
    assert isinstance(attention, Attention)
    assert (inputs.q.column, inputs.k.column, inputs.v.column) == (0, 64, 96)
    assert attention.q == inputs.out
    assert attention.out.num_columns == 64
