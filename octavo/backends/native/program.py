"""`Program`: a recording made ready to run. A step of it is one call, whatever the number of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import singledispatchmethod
from typing import Any

import numpy as np

from octavo.backends.native.buffers import plan_buffers
from octavo.backends.native.fusion import fuse
from octavo.backends.native.kv_cache import KVCaches
from octavo.backends.native.library import load_library
from octavo.backends.native.operations import (
    ActivateAndMul,
    Attention,
    AttentionInputs,
    Embedding,
    Linear,
    Operation,
    Recording,
    RmsNorm,
    Rope,
    RopeAngles,
    View,
)
from octavo.backends.native.recorder import record
from octavo.backends.native.support import check_supported
from octavo.backends.native.weights import PackedWeights
from octavo.ops import AttentionLayer
from octavo.types.batch import CommonAttentionMetadata


def compile_program(
    engine: Any,
    function: Callable[..., Any],
    inputs: Mapping[str, int] | None = None,
    caches: KVCaches | None = None,
) -> Program:
    """`function(ops, token_ids, positions, **inputs)`, written in `Ops`, as a program of its own.

    `inputs` are the names and columns of further inputs. Raises UnsupportedError for what no kernel can run.
    """
    recording = fuse(record(function, inputs))
    check_supported(recording)
    return Program(engine, recording, PackedWeights(engine, [recording]), caches)


class Program:
    """Runs a recording on `engine`, with `weights` and caches that it keeps alive."""

    def __init__(
        self,
        engine: Any,
        recording: Recording,
        weights: PackedWeights,
        caches: KVCaches | None = None,
    ) -> None:
        builder = _Builder(engine, recording, weights, caches)
        for operation in recording.operations:
            builder.add(operation)
        for view in recording.outputs:
            builder.native.add_output(builder.place(view))
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
        **inputs: np.ndarray,
    ) -> tuple[np.ndarray, ...]:
        """Run a step of `num_tokens` tokens. Returns the outputs, each [num_tokens, columns] float32.

        token_ids [num_tokens] int32, positions [num_tokens] int64 and one metadata for each KV cache group
        are needed if the program reads them; inputs are [num_tokens, columns] float32. The outputs are the
        caller's: their memory is used again once they are gone. Raises ValueError, naming the argument, for
        arrays of another kind or with places outside the cache.
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
            num_tokens, token_ids, positions, groups, [inputs[name] for name in self._input_names]
        )
        return tuple(outputs)


class _Builder:
    """Adds operations to a native program, as its instructions."""

    def __init__(
        self, engine: Any, recording: Recording, weights: PackedWeights, caches: KVCaches | None
    ) -> None:
        self.native = load_library().Program(engine)
        self._weights = weights
        self._caches = caches
        plan = plan_buffers(recording)
        self._buffers = {
            view.value: self.native.add_input(name, view.num_columns)
            for name, view in recording.inputs.items()
        } | {
            value: self.native.add_buffer(offset, value.num_columns) for value, offset in plan.offsets.items()
        }

    def place(self, view: View) -> tuple[int, int, int]:
        """Where the view lies: its buffer, first column and number of columns."""
        return self._buffers[view.value], view.column, view.num_columns

    @singledispatchmethod
    def add(self, operation: Operation) -> None:
        """Add one instruction."""
        raise TypeError(f"no instruction for {operation}")

    @add.register
    def _(self, operation: Embedding) -> None:
        table = operation.table
        self.native.embedding(
            format=table.format.name,
            table=table.data,
            k=table.shape[1],
            scale=operation.scale,
            out=self.place(operation.out),
        )

    @add.register
    def _(self, operation: RopeAngles) -> None:
        rope = operation.rope
        self.native.rope_angles(
            frequencies=np.ascontiguousarray(rope.inverse_frequencies, np.float32),
            magnitude=rope.magnitude,
            out=self.place(operation.out),
        )

    @add.register
    def _(self, operation: RmsNorm) -> None:
        self.native.rms_norm(
            x=self.place(operation.x),
            weight=self._weights.vector(operation.weight),
            eps=operation.eps,
            residual=self.place(operation.residual) if operation.residual else None,
            out=self.place(operation.out),
        )

    @add.register
    def _(self, operation: Linear) -> None:
        layer, norm = operation.layer, operation.norm
        biases = layer.biases or (None,) * len(layer.weights)
        self.native.linear(
            x=self.place(operation.x),
            norm_weight=self._weights.vector(norm.weight) if norm else None,
            norm_eps=norm.eps if norm else 0.0,
            parts=list(map(self._weights.matrix, layer.weights, biases)),
            activation=operation.activation or "none",
            residual=self.place(operation.residual) if operation.residual else None,
            out=self.place(operation.out),
        )

    @add.register
    def _(self, operation: ActivateAndMul) -> None:
        self.native.activate_and_mul(
            x=self.place(operation.x), activation=operation.activation, out=self.place(operation.out)
        )

    @add.register
    def _(self, operation: Rope) -> None:
        self.native.rope(
            x=self.place(operation.x),
            angles=self.place(operation.angles),
            style=operation.rope.style,
            head_size=operation.x.head_size,
            rotary_size=operation.rope.rotary_size,
            out=self.place(operation.out),
        )

    @add.register
    def _(self, operation: AttentionInputs) -> None:
        layer, rope = operation.layer, operation.rope
        self.native.attention_inputs(
            q=self.place(operation.q),
            k=self.place(operation.k),
            v=self.place(operation.v),
            angles=self.place(operation.angles) if operation.angles else None,
            style=rope.style if rope else "none",
            rotary_size=rope.rotary_size if rope else 0,
            scale=layer.scale,
            **self._cache_of(layer),
            out=self.place(operation.out),
        )

    @add.register
    def _(self, operation: Attention) -> None:
        layer = operation.layer
        self.native.attention(
            q=self.place(operation.q),
            **self._cache_of(layer),
            causal=layer.causal,
            window=layer.window or 0,
            soft_cap=layer.soft_cap or 0.0,
            sinks=self._weights.vector(layer.sinks) if layer.sinks else None,
            out=self.place(operation.out),
        )

    def _cache_of(self, layer: AttentionLayer) -> dict[str, Any]:
        """The arguments that say where the K and V of `layer` are, and which group's blocks they lie in."""
        assert self._caches is not None, "a program that attends needs caches"
        return self._caches.of_layer(layer.index)._asdict()
