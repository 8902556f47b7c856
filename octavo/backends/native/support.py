"""Checks that kernels can run a recording, before its weights are packed."""

from __future__ import annotations

from octavo.backends.native.library import load_library
from octavo.backends.native.operations import Attention, Embedding, Linear, Recording
from octavo.errors import UnsupportedError
from octavo.ops import AttentionLayer
from octavo.weights.weight import Weight

# Columns of a matrix. A row of inputs and a few panels of the matrix must fit into a thread's scratch memory.
MAX_INPUTS = 2**15
HEAD_SIZE_STEP = 16  # attention's vectors have 16 lanes
MAX_HEAD_SIZE = 256


def check_supported(recording: Recording) -> None:
    """Raise UnsupportedError, naming weight or layer, for an operation that no kernel can run."""
    for operation in recording.operations:
        match operation:
            case Linear():
                for weight in operation.layer.weights:
                    _check_matrix(weight)
            case Embedding():
                _check_matrix(operation.table)
            case Attention():
                _check_heads(operation.layer)


def _check_matrix(weight: Weight) -> None:
    if len(weight.shape) != 2:
        raise UnsupportedError(
            f"weight {weight.name!r} has shape {weight.shape}; the native backend multiplies only matrices "
            "of two dimensions"
        )
    formats = load_library().FORMATS
    if weight.format.name not in formats:
        raise UnsupportedError(
            f"weight {weight.name!r} is in format {weight.format.name}, for which the native backend has no "
            f"kernel; it has kernels for {', '.join(formats)}"
        )
    if weight.shape[1] > MAX_INPUTS:
        raise UnsupportedError(
            f"weight {weight.name!r} has {weight.shape[1]} inputs; the native backend takes at most "
            f"{MAX_INPUTS}"
        )


def _check_heads(layer: AttentionLayer) -> None:
    size = layer.head_size
    if size % HEAD_SIZE_STEP or not HEAD_SIZE_STEP <= size <= MAX_HEAD_SIZE:
        raise UnsupportedError(
            f"layer {layer.index} has heads of {size} features; the native backend's attention takes "
            f"multiples of {HEAD_SIZE_STEP} up to {MAX_HEAD_SIZE}"
        )
