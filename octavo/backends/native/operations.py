"""What a recorded model is made of: values, and the operations between them, in the order they run.

Each operation becomes one instruction of csrc/program/instructions.h, which has the same name. It takes the
operation's fields as its arguments; program.py says which instructions take others. Plain data: nothing here
records, changes or runs it.
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
    """Numbers [T, num_columns] float32 that one operation writes and others read; or an input of the program.

    Two values are the same only if they are one object.
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
        """Whether this is all of the value."""
        return self.num_columns == self.value.num_columns


def new_view(num_columns: int, head_size: int | None = None) -> View:
    """The whole of a new value."""
    return View(Value(num_columns), 0, num_columns, head_size or num_columns)


@dataclass(frozen=True, slots=True)
class InputNorm:
    """The RMS norm that a linear map applies to its input first."""

    weight: Weight
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One step of the model: reads its other views, writes `out`."""

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
        """The view in whose memory `out` may be written if nothing else reads it later."""
        return None

    @property
    def instruction(self) -> str:
        """The name of the instruction: rms_norm for RmsNorm."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()


@dataclass(frozen=True, slots=True, eq=False)
class Embedding(Operation):
    """out = rows of `table` that the step's token ids name, times `scale`."""

    table: Weight
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class ReplaceRows(Operation):
    """out = x, but for the rows that the step brings by `name`."""

    x: View
    name: str

    @property
    def overwrites(self) -> View | None:
        """The rows that are not replaced stay where they are."""
        return self.x


@dataclass(frozen=True, slots=True, eq=False)
class RopeAngles(Operation):
    """out = cosines, then sines, of the angles that `rope` gives the step's positions."""

    rope: ops.Rope


@dataclass(frozen=True, slots=True, eq=False)
class RmsNorm(Operation):
    """out = x normalized, head by head, plus residual."""

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
    """out = x, each head turned by `angles`, which are those of `rope`."""

    x: View
    angles: View
    rope: ops.Rope


@dataclass(frozen=True, slots=True, eq=False)
class AttentionInputs(Operation):
    """Puts k and v into the layer's cache; out = q, scaled. With `rope`, q and k are turned first."""

    q: View
    k: View
    v: View
    layer: ops.AttentionLayer
    angles: View | None = None
    rope: ops.Rope | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Attention(Operation):
    """out = what the tokens see of the layer's cache; q is what AttentionInputs of that layer gave."""

    q: View
    layer: ops.AttentionLayer


@dataclass(frozen=True, slots=True)
class Recording:
    """A whole program: `operations` in the order they run. Every value is written once, before it is read."""

    inputs: Mapping[str, View]
    operations: tuple[Operation, ...]
    outputs: tuple[View, ...]
