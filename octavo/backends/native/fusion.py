"""Passes over a recording that fuse several operations into one kernel. Results stay the same.

A pass removes an operation only if its result is read by nothing but the operations that take over its work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from octavo.backends.native.operations import (
    ActivateAndMul,
    AttentionInputs,
    InputNorm,
    Linear,
    Operation,
    Recording,
    RmsNorm,
    Rope,
    Value,
    View,
)

_Kind = TypeVar("_Kind", bound=Operation)


def fuse(recording: Recording) -> Recording:
    """The recording after every pass."""
    for one_pass in PASSES:
        recording = one_pass(recording)
    return recording


def fold_norms(recording: Recording) -> Recording:
    """Make an RMS norm without residual part of the linear maps that read it, if only linear maps do."""
    uses = _Uses(recording)
    changes: dict[Operation, Operation | None] = {}
    for norm in _all(RmsNorm, recording):
        readers = uses.readers(norm.out)
        linears = [reader for reader in readers if isinstance(reader, Linear) and _maps(reader, norm.out)]
        is_plain = norm.weight.shape[0] == norm.x.num_columns and norm.residual is None
        if is_plain and linears and len(linears) == len(readers):
            changes[norm] = None
            for linear in linears:
                changes[linear] = replace(linear, x=norm.x, norm=InputNorm(norm.weight, norm.eps))
    return _rewrite(recording, changes)


def fuse_gates(recording: Recording) -> Recording:
    """Make a gated activation part of the linear map before it, whose two weights are gate and up.

    Both weights must have the same size and format, since one kernel multiplies them.
    """
    uses = _Uses(recording)
    changes: dict[Operation, Operation | None] = {}
    for linear in _all(Linear, recording):
        readers = uses.readers(linear.out)
        match readers:
            case [ActivateAndMul() as gate] if gate.x.is_whole and _is_gate_and_up(linear):
                changes[linear] = None
                changes[gate] = replace(linear, out=gate.out, activation=gate.activation)
    return _rewrite(recording, changes)


def fold_ropes(recording: Recording) -> Recording:
    """Make the rotary embedding of queries and keys part of the attention inputs that alone read them."""
    uses = _Uses(recording)
    ropes = {rope.out: rope for rope in _all(Rope, recording)}
    changes: dict[Operation, Operation | None] = {}
    for inputs in _all(AttentionInputs, recording):
        q, k = ropes.get(inputs.q), ropes.get(inputs.k)
        if q is None or k is None or q.rope is not k.rope:
            continue
        if all(uses.readers(rope.out) == [inputs] for rope in (q, k)):
            changes |= {q: None, k: None}
            changes[inputs] = replace(inputs, q=q.x, k=k.x, angles=q.angles, rope=q.rope)
    return _rewrite(recording, changes)


PASSES: tuple[Callable[[Recording], Recording], ...] = (fold_norms, fuse_gates, fold_ropes)


class _Uses:
    """The operations that read each value of a recording."""

    def __init__(self, recording: Recording) -> None:
        self._readers: dict[Value, list[Operation]] = defaultdict(list)
        self._outputs = {view.value for view in recording.outputs}
        for operation in recording.operations:
            for view in operation.reads:
                self._readers[view.value].append(operation)

    def readers(self, view: View) -> list[Operation]:
        """The operations that read any part of the view's value, one entry for each read.

        The list is empty for an output of the program: the caller reads it too, so it must not be removed.
        """
        return [] if view.value in self._outputs else self._readers[view.value]


def _all(kind: type[_Kind], recording: Recording) -> Iterator[_Kind]:
    return (operation for operation in recording.operations if isinstance(operation, kind))


def _maps(linear: Linear, view: View) -> bool:
    """Whether `linear` has `view` as its input, and another value or None as its residual."""
    return linear.x == view and (linear.residual is None or linear.residual.value is not view.value)


def _is_gate_and_up(linear: Linear) -> bool:
    """Whether the map has two weights of the same size and format, and no residual."""
    weights = linear.layer.weights
    alike = {(weight.shape[0], weight.format) for weight in weights}
    return len(weights) == 2 and len(alike) == 1 and linear.residual is None


def _rewrite(recording: Recording, changes: Mapping[Operation, Operation | None]) -> Recording:
    """The recording with operations replaced as `changes` says. None removes an operation."""
    changed = (changes.get(operation, operation) for operation in recording.operations)
    return replace(recording, operations=tuple(operation for operation in changed if operation is not None))
