"""`Recorder`: an `Ops` that computes nothing, and records the operations that a model uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from octavo import ops
from octavo.backends.native.operations import (
    ActivateAndMul,
    Attention,
    AttentionInputs,
    Embedding,
    Linear,
    Operation,
    Recording,
    ReplaceRows,
    RmsNorm,
    Rope,
    RopeAngles,
    Value,
    View,
    new_view,
)
from octavo.ops import AttentionLayer
from octavo.weights.weight import Weight

# These stand for the token ids and positions of a step. A model passes them on and never reads their values.
TOKEN_IDS = View(Value(0), 0, 0, 1)
POSITIONS = View(Value(0), 0, 0, 1)


def record(function: Callable[..., Any], inputs: Mapping[str, int] | None = None) -> Recording:
    """The operations of `function(ops, token_ids, positions, **inputs)`, which is written in `Ops`.

    `inputs` gives the names of further inputs and their numbers of columns. The function returns one tensor
    or a tuple of them.
    """
    recorder = Recorder()
    given = {name: new_view(num_columns) for name, num_columns in (inputs or {}).items()}
    outputs = function(recorder, TOKEN_IDS, POSITIONS, **given)
    return Recording(
        inputs=given,
        operations=tuple(recorder.operations),
        outputs=outputs if isinstance(outputs, tuple) else (outputs,),
    )


class Recorder:
    """Records operations on views of values. Implements `Ops`, which defines each operation."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._angles: dict[ops.Rope, View] = {}

    def embedding(self, token_ids: View, table: Weight, scale: float = 1.0) -> View:
        assert token_ids is TOKEN_IDS, "the only token ids are those of the step"
        return self._add(Embedding(new_view(table.shape[1]), table, scale))

    def replace_rows(self, x: View, name: str) -> View:
        """The result shares the buffer of x if no later operation reads x (`Operation.overwrites`)."""
        return self._add(ReplaceRows(new_view(x.num_columns, x.head_size), x, name))

    def rms_norm(self, x: View, weight: Weight, eps: float, residual: View | None = None) -> View:
        return self._add(RmsNorm(new_view(x.num_columns, x.head_size), x, weight, eps, residual))

    def linear(self, x: View, layer: ops.Linear, residual: View | None = None) -> View:
        out = new_view(sum(weight.shape[0] for weight in layer.weights))
        return self._add(Linear(out, x, layer, residual))

    def split_heads(self, x: View, num_heads: tuple[int, ...]) -> tuple[View, ...]:
        head_size = x.num_columns // sum(num_heads)
        views, column = [], x.column
        for count in num_heads:
            views.append(View(x.value, column, count * head_size, head_size))
            column += count * head_size
        return tuple(views)

    def rope(self, x: View, positions: View, rope: ops.Rope) -> View:
        assert positions is POSITIONS, "the only positions are those of the step"
        if rope not in self._angles:  # the angles of a rope are computed once, before its first use
            self._angles[rope] = self._add(RopeAngles(new_view(rope.rotary_size), rope))
        return self._add(Rope(new_view(x.num_columns, x.head_size), x, self._angles[rope], rope))

    def attention(self, q: View, k: View, v: View, layer: AttentionLayer) -> View:
        # Two operations: the step's keys and values must all be in the cache before a query reads them.
        q = self._add(AttentionInputs(new_view(q.num_columns, q.head_size), q, k, v, layer))
        return self._add(Attention(new_view(q.num_columns), q, layer))

    def silu_and_mul(self, x: View) -> View:
        return self._add(ActivateAndMul(new_view(x.num_columns // 2), x, "silu"))

    def gelu_tanh_and_mul(self, x: View) -> View:
        return self._add(ActivateAndMul(new_view(x.num_columns // 2), x, "gelu_tanh"))

    def _add(self, operation: Operation) -> View:
        self.operations.append(operation)
        return operation.out
