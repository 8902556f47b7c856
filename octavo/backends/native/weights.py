"""A program's weights in the form that kernels read: matrices packed into one arena, in the order of reading.

A packed matrix has the bits of its file in another order. Embedding tables are not packed: single rows of
them are read from the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from octavo.backends.native.library import load_library
from octavo.backends.native.operations import Linear, Recording
from octavo.weights.mapped_file import release_pages
from octavo.weights.weight import Weight

if TYPE_CHECKING:
    from octavo.backends.native._native import Device, Memory, PackedMatrix

PANEL = 16  # outputs (rows) of a matrix that are packed together
SHOW_PROGRESS_AFTER_S = 1.0
# Packing fewer bytes ends before a bar would show, and importing tqdm (20 ms) would take about as long.
SHOW_PROGRESS_FROM_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Placement:
    """The position of a matrix in the arena, in bytes. A panel begins every `panel_stride` bytes."""

    offset: int
    panel_stride: int


class PackedWeights:
    """The matrices of every linear map in `recordings`, each packed once, and float32 vectors.

    Gate and up of a gated map alternate panel by panel, since they are read together. Raises MemoryError if
    the arena does not fit into memory.
    """

    def __init__(self, device: Device, recordings: Iterable[Recording]) -> None:
        self._vectors: dict[Weight, np.ndarray] = {}
        self._library = load_library()
        self._placements: dict[Weight, Placement] = {}
        num_bytes = 0
        for recording in recordings:
            for operation in recording.operations:
                if isinstance(operation, Linear):
                    num_bytes = self._place(operation, num_bytes)
        self._arena: Memory = self._library.Memory(num_bytes)
        self._pack(device)

    @property
    def num_bytes(self) -> int:
        """Bytes of all packed matrices."""
        num_bytes: int = self._arena.size
        return num_bytes

    def matrix(self, weight: Weight, bias: Weight | None = None) -> PackedMatrix:
        """The packed matrix, and the vector that is added to its outputs."""
        placement = self._placements[weight]
        matrix: PackedMatrix = self._library.PackedMatrix(
            memory=self._arena,
            offset=placement.offset,
            format=weight.format.name,
            n=weight.shape[0],
            k=weight.shape[1],
            panel_stride=placement.panel_stride,
            bias=None if bias is None else self.vector(bias),
        )
        return matrix

    def vector(self, weight: Weight) -> np.ndarray:
        """The values of a vector, such as a norm or a bias, as float32. They are converted once."""
        if weight not in self._vectors:
            self._vectors[weight] = np.ascontiguousarray(weight.to_float32())
        return self._vectors[weight]

    def _place(self, linear: Linear, start: int) -> int:
        """Place the matrices of `linear` that are not placed yet, from byte `start` on. Returns their end."""
        new = [weight for weight in dict.fromkeys(linear.layer.weights) if weight not in self._placements]
        for together in [new] if linear.activation else [[weight] for weight in new]:
            sizes = [self._library.panel_bytes(weight.format.name, weight.shape[1]) for weight in together]
            stride, offset = sum(sizes), start
            for weight, size in zip(together, sizes, strict=True):
                self._placements[weight] = Placement(offset, stride)
                offset += size
            if together:
                start += stride * -(-together[0].shape[0] // PANEL)
        return start

    def _pack(self, device: Device) -> None:
        with _progress_bar(sum(weight.nbytes for weight in self._placements)) as advance:
            for weight, placement in self._placements.items():
                self._library.pack_into(
                    device,
                    weight.format.name,
                    weight.data,
                    weight.shape[1],
                    self._arena,
                    placement.offset,
                    placement.panel_stride,
                )
                release_pages(weight.data)  # only the packed copy is read from now on
                advance(weight.nbytes)


@contextmanager
def _progress_bar(num_bytes: int) -> Iterator[Callable[[int], object]]:
    """A progress bar over `num_bytes`, on a terminal. Yields a function that adds the bytes just packed."""
    if num_bytes < SHOW_PROGRESS_FROM_BYTES:
        yield lambda done: None
        return
    from tqdm import tqdm

    with tqdm(
        total=num_bytes,
        desc="packing weights",
        unit="B",
        unit_scale=True,
        leave=False,
        disable=None,  # tqdm's word for "only on a terminal"
        delay=SHOW_PROGRESS_AFTER_S,
    ) as bar:
        yield bar.update
