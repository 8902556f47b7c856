"""`Program`: a recording as a C++ program. A step is one call into C++, whatever the number of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import singledispatchmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.backends.native.buffers import plan_buffers
from octavo.backends.native.fusion import fuse
from octavo.backends.native.kv_cache import KVCaches
from octavo.backends.native.library import load_library
from octavo.backends.native.operations import (
    Attention,
    AttentionInputs,
    Embedding,
    Linear,
    Operation,
    Recording,
    Rope,
    RopeAngles,
    View,
)
from octavo.backends.native.recorder import record
from octavo.backends.native.support import check_supported
from octavo.backends.native.weights import PackedWeights
from octavo.ops import AttentionLayer
from octavo.types.batch import CommonAttentionMetadata, RowsInput
from octavo.weights.weight import Weight

if TYPE_CHECKING:
    from octavo.backends.native._native import Device


def compile_program(
    device: Device,
    function: Callable[..., Any],
    inputs: Mapping[str, int] | None = None,
    caches: KVCaches | None = None,
) -> Program:
    """Compile `function(ops, token_ids, positions, **inputs)`, which is written in `Ops`, to a program.

    `inputs` maps the names of further inputs to their numbers of columns. Raises UnsupportedError for an
    operation that no kernel can run.
    """
    recording = fuse(record(function, inputs))
    check_supported(recording)
    return Program(device, recording, PackedWeights(device, [recording]), caches)


class Program:
    """Runs a recording on `device`. It keeps `weights` and `caches` alive."""

    def __init__(
        self,
        device: Device,
        recording: Recording,
        weights: PackedWeights,
        caches: KVCaches | None = None,
    ) -> None:
        builder = _Builder(device, recording, weights, caches)
        for operation in recording.operations:
            builder.add(operation)
        for view in recording.outputs:
            builder.native.add_output(builder.operand(view))
        self.weights = weights
        self._native = builder.native
        self._input_names = list(recording.inputs)

    def run(
        self,
        num_tokens: int,
        *,
        token_ids: np.ndarray | None = None,
        positions: np.ndarray | None = None,
        attention: Sequence[CommonAttentionMetadata] = (),
        rows_inputs: Mapping[str, RowsInput] = MappingProxyType({}),
        **inputs: np.ndarray,
    ) -> tuple[np.ndarray, ...]:
        """Run a step of `num_tokens` tokens. Returns the outputs, each [num_tokens, columns] float32.

        token_ids [num_tokens] int32, positions [num_tokens] int64 and one metadata for each KV cache group
        are needed if the program reads them. `inputs` are [num_tokens, columns] float32. `rows_inputs` are
        the rows for the program's `replace_rows`; any of them may be absent. The outputs stay valid as long
        as the caller holds them; then their memory is used again. Raises ValueError, naming the argument, for
        arrays with a wrong shape or type, for slots or blocks outside the cache, and for rows inputs that the
        program does not read.
        """
        groups = [
            (
                each.query_start_loc,
                each.seq_lens,
                each.block_table,
                each.slot_mapping,
                each.num_common_prefix_blocks,
            )
            for each in attention
        ]
        outputs = self._native.run(
            num_tokens,
            token_ids,
            positions,
            groups,
            [inputs[name] for name in self._input_names],
            dict(rows_inputs),
        )
        return tuple(outputs)


class _Builder:
    """Builds a native program: adds an instruction for each operation."""

    def __init__(
        self, device: Device, recording: Recording, weights: PackedWeights, caches: KVCaches | None
    ) -> None:
        self.native = load_library().Program(device)
        self._weights = weights
        self._caches = caches
        plan = plan_buffers(recording)
        self._buffers = {
            view.value: self.native.add_input(name, view.num_columns)
            for name, view in recording.inputs.items()
        } | {
            value: self.native.add_buffer(offset, value.num_columns) for value, offset in plan.offsets.items()
        }

    def operand(self, view: View) -> tuple[int, int, int]:
        """The view as an operand: its buffer, first column and number of columns."""
        return self._buffers[view.value], view.column, view.num_columns

    def add(self, operation: Operation) -> None:
        """Add the operation's instruction."""
        add = getattr(self.native, operation.instruction)
        add(**self._arguments(operation), out=self.operand(operation.out))

    def _argument(self, value: Any) -> Any:
        match value:
            case View():
                return self.operand(value)
            case Weight():
                return self._weights.vector(value)
            case _:
                return value

    @singledispatchmethod
    def _arguments(self, operation: Operation) -> dict[str, Any]:
        """The arguments of the instruction besides `out`. By default these are the operation's fields."""
        return {name: self._argument(value) for name, value in operation.inputs.items()}

    @_arguments.register
    def _(self, operation: Embedding) -> dict[str, Any]:
        table = operation.table
        return {
            "format": table.format.name,
            "table": table.data,
            "k": table.shape[1],
            "scale": operation.scale,
        }

    @_arguments.register
    def _(self, operation: RopeAngles) -> dict[str, Any]:
        rope = operation.rope
        return {
            "frequencies": np.ascontiguousarray(rope.inverse_frequencies, np.float32),
            "magnitude": rope.magnitude,
        }

    @_arguments.register
    def _(self, operation: Linear) -> dict[str, Any]:
        layer, norm = operation.layer, operation.norm
        biases = layer.biases or (None,) * len(layer.weights)
        return {
            "x": self.operand(operation.x),
            "norm_weight": self._weights.vector(norm.weight) if norm else None,
            "norm_eps": norm.eps if norm else 0.0,
            "parts": [
                self._weights.matrix(weight, bias) for weight, bias in zip(layer.weights, biases, strict=True)
            ],
            "activation": operation.activation or "none",
            "residual": self._argument(operation.residual),
        }

    @_arguments.register
    def _(self, operation: Rope) -> dict[str, Any]:
        return {
            "x": self.operand(operation.x),
            "angles": self.operand(operation.angles),
            "style": operation.rope.style,
            "head_size": operation.x.head_size,
            "rotary_size": operation.rope.rotary_size,
        }

    @_arguments.register
    def _(self, operation: AttentionInputs) -> dict[str, Any]:
        rope = operation.rope
        return {
            "q": self.operand(operation.q),
            "k": self.operand(operation.k),
            "v": self.operand(operation.v),
            "angles": self._argument(operation.angles),
            "style": rope.style if rope else "none",
            "rotary_size": rope.rotary_size if rope else 0,
            "scale": operation.layer.scale,
            **self._cache_of(operation.layer),
        }

    @_arguments.register
    def _(self, operation: Attention) -> dict[str, Any]:
        layer = operation.layer
        return {
            "q": self.operand(operation.q),
            "causal": layer.causal,
            "window": layer.window or 0,
            "soft_cap": layer.soft_cap or 0.0,
            "sinks": self._argument(layer.sinks),
            **self._cache_of(layer),
        }

    def _cache_of(self, layer: AttentionLayer) -> dict[str, Any]:
        """The arguments for the KV cache of `layer`: its group and its native cache."""
        assert self._caches is not None, "a program with attention needs caches"
        return self._caches.of_layer(layer.index)._asdict()
