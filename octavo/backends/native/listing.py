"""A recording as text for people: the instructions, their weights and their buffers."""

from __future__ import annotations

from functools import singledispatchmethod

from octavo.backends.native.buffers import plan_buffers
from octavo.backends.native.operations import (
    Attention,
    AttentionInputs,
    Embedding,
    Linear,
    Operation,
    Recording,
    RmsNorm,
    Rope,
    RopeAngles,
    Value,
    View,
)
from octavo.weights.weight import Weight

FLOAT_BYTES = 4


def list_program(recording: Recording) -> str:
    """One line for each instruction, then the inputs, the outputs and the sizes of all buffers and matrices.

    A line has the number of the instruction, its kind, the buffer that it writes (number of columns, and
    first column in the arena), and its operands. `%5` is the value that instruction 5 wrote.
    """
    listing = _Listing(recording)
    lines = [listing.line(number) for number in range(len(recording.operations))]
    weights = {
        weight
        for operation in recording.operations
        if isinstance(operation, Linear)
        for weight in operation.layer.weights
    }
    inputs = [f"{name} [{view.num_columns}]" for name, view in recording.inputs.items()]
    columns = listing.plan.num_columns
    lines += [
        f"inputs: {', '.join(['token_ids', 'positions', *inputs])}",
        f"outputs: {', '.join(map(listing.name, recording.outputs))}",
        f"buffers: {columns} columns, {columns * FLOAT_BYTES} bytes a token",
        f"matrices: {len(weights)}, {sum(weight.nbytes for weight in weights)} bytes",
    ]
    return "\n".join(lines)


class _Listing:
    """Names the values of a recording, and describes its operations."""

    def __init__(self, recording: Recording) -> None:
        self.plan = plan_buffers(recording)
        self._operations = recording.operations
        self._names: dict[Value, str] = {view.value: name for name, view in recording.inputs.items()}
        for number, operation in enumerate(recording.operations):
            self._names[operation.out.value] = f"%{number}"

    def line(self, number: int) -> str:
        """The line of instruction `number`."""
        operation = self._operations[number]
        out = operation.out
        buffer = f"[{out.num_columns}] at {self.plan.offsets[out.value]}"
        return f"%{number:<4} {type(operation).__name__:<16} {buffer:<16} {self.describe(operation)}"

    def name(self, view: View) -> str:
        """The view as text: the name of its value, with the columns if the view is a part of it."""
        name = self._names[view.value]
        return name if view.is_whole else f"{name}[{view.column}:{view.column + view.num_columns}]"

    @singledispatchmethod
    def describe(self, operation: Operation) -> str:
        """The operands of the operation as text. By default these are all fields but `out`."""
        return ", ".join(self._text(value) for value in operation.inputs.values() if value is not None)

    def _text(self, value: object) -> str:
        match value:
            case View():
                return self.name(value)
            case Weight():
                return value.name
            case _:
                return str(value)

    @describe.register
    def _(self, operation: Embedding) -> str:
        scale = f", times {operation.scale:g}" if operation.scale != 1 else ""
        return f"token_ids of {_matrix(operation.table)}{scale}"

    @describe.register
    def _(self, operation: RopeAngles) -> str:
        rope = operation.rope
        return f"positions, {len(rope.inverse_frequencies)} frequencies, magnitude {rope.magnitude:g}"

    @describe.register
    def _(self, operation: RmsNorm) -> str:
        heads = operation.x.num_columns // operation.weight.shape[0]
        text = f"{self.name(operation.x)}, {heads} times {operation.weight.name}, eps {operation.eps:g}"
        return f"{text} + {self.name(operation.residual)}" if operation.residual else text

    @describe.register
    def _(self, operation: Linear) -> str:
        x, weights = self.name(operation.x), operation.layer.weights
        text = f"norm({x}; {operation.norm.weight.name})" if operation.norm else x
        between = f" {operation.activation} gates " if operation.activation else " | "
        text += " * " + between.join(map(_matrix, weights))
        if operation.layer.biases:
            text += " + biases"
        return f"{text} + {self.name(operation.residual)}" if operation.residual else text

    @describe.register
    def _(self, operation: Rope) -> str:
        return f"{self.name(operation.x)} turned by {self.name(operation.angles)}, {operation.rope.style}"

    @describe.register
    def _(self, operation: AttentionInputs) -> str:
        text = ", ".join(map(self.name, (operation.q, operation.k, operation.v)))
        if operation.angles and operation.rope:
            text += f", turned by {self.name(operation.angles)}, {operation.rope.style}"
        return f"{text}, to layer {operation.layer.index}"

    @describe.register
    def _(self, operation: Attention) -> str:
        layer = operation.layer
        kinds = [
            "causal" if layer.causal else "full",
            f"window {layer.window}" if layer.window else "",
            f"soft cap {layer.soft_cap:g}" if layer.soft_cap else "",
            "sinks" if layer.sinks else "",
        ]
        heads = f"{layer.num_heads} heads on {layer.num_kv_heads} of {layer.head_size}"
        return f"{self.name(operation.q)}, layer {layer.index}, {heads}, {', '.join(filter(None, kinds))}"


def _matrix(weight: Weight) -> str:
    return f"{weight.name} {weight.format.name} {'x'.join(map(str, weight.shape))}"
