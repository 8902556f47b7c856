"""The parts of a recorded model: values, and the operations that read and write them. Plain data only.

Each operation becomes one instruction of csrc/program/instructions.h, which has the same name. The
instruction's arguments are the operation's fields, with exceptions that program.py defines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from octavo import ops
from octavo.weights.weight import Weight

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """An array [T, num_columns] float32: an input of the program, or the result of one operation.

    Values are compared by identity.
    """

    num_columns: int


@dataclass(frozen=True, slots=True)
class View:
    """Columns `column` up to `column + num_columns` of a value, seen as heads of `head_size`."""

    value: Value
    column: int
    num_columns: int
    head_size: int

    @property
    def is_whole(self) -> bool:
        """Whether the view covers the whole value."""
        return self.num_columns == self.value.num_columns


def new_view(num_columns: int, head_size: int | None = None) -> View:
    """A view of the whole of a new value."""
    return View(Value(num_columns), 0, num_columns, head_size or num_columns)


@dataclass(frozen=True, slots=True)
class InputNorm:
    """The RMS norm that a linear map applies to its input before it multiplies."""

    weight: Weight
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation of the model. It reads its other views and writes `out`."""

    out: View

    @property
    def reads(self) -> tuple[View, ...]:
        """The views this operation reads."""
        return tuple(value for value in self.inputs.values() if isinstance(value, View))

    @property
    def inputs(self) -> dict[str, Any]:
        """Every field but `out`, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "out"}

    @property
    def overwrites(self) -> View | None:
        """The view whose memory `out` may take over if no later operation reads that view; None = no view."""
        return None

    @property
    def instruction(self) -> str:
        """The name of the instruction: rms_norm for RmsNorm."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()


@dataclass(frozen=True, slots=True, eq=False)
class Embedding(Operation):
    """out = rows of `table` at the step's token ids, times `scale`."""

    table: Weight
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class ReplaceRows(Operation):
    """out = x, with some rows replaced by those that the step's inputs have under `name`."""

    x: View
    name: str

    @property
    def overwrites(self) -> View | None:
        """x, so that the rows that are not replaced need no copy."""
        return self.x


@dataclass(frozen=True, slots=True, eq=False)
class RopeAngles(Operation):
    """out = the cosines and then the sines of the angles of `rope` at the step's positions."""

    rope: ops.Rope


@dataclass(frozen=True, slots=True, eq=False)
class RmsNorm(Operation):
    """out = x, each head normalized and multiplied by `weight`, plus residual."""

    x: View
    weight: Weight
    eps: float
    residual: View | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Linear(Operation):
    """out = norm(x) times the layer's stacked weights, plus biases, plus residual.

    With an activation the layer has two weights of one size, gate and up, and out = activation(gate) * up.
    """

    x: View
    layer: ops.Linear
    residual: View | None = None
    norm: InputNorm | None = None
    activation: Activation | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ActivateAndMul(Operation):
    """out = activation(first half of x) * second half."""

    x: View
    activation: Activation


@dataclass(frozen=True, slots=True, eq=False)
class Rope(Operation):
    """out = x, each head rotated by `angles`, which are those of `rope`."""

    x: View
    angles: View
    rope: ops.Rope


@dataclass(frozen=True, slots=True, eq=False)
class AttentionInputs(Operation):
    """Writes k and v into the layer's cache. out = q, scaled. With `rope`, q and k are rotated first."""

    q: View
    k: View
    v: View
    layer: ops.AttentionLayer
    angles: View | None = None
    rope: ops.Rope | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Attention(Operation):
    """out = attention of `q` over the layer's cache. `q` is the output of the layer's AttentionInputs."""

    q: View
    layer: ops.AttentionLayer


@dataclass(frozen=True, slots=True)
class Recording:
    """A whole program: `operations` in the order they run. Every value is written once, before it is read."""

    inputs: Mapping[str, View]
    operations: tuple[Operation, ...]
    outputs: tuple[View, ...]
