"""Memory-mapped files, and tensors cut out of them without a copy.

Every offset and size that a file's header gives for a tensor is checked here, for all file types, before the
tensor is read. Each file type has its own module for the header. Nothing here protects from another process
that shortens a mapped file: the system then ends this process on its next access.
"""

from __future__ import annotations

import math
import mmap
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from octavo.errors import WeightError
from octavo.weights.formats import Format
from octavo.weights.weight import Weight

_DAMAGED = "it is truncated or damaged: fetch it again"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor as a header describes it: its logical row-major `shape`, and the offset of its data.

    `offset` is in bytes from the start of the file's data section.
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    offset: int


class MappedFile:
    """A whole file, mapped read-only. `buffer` is the map. It is valid as long as a view of it exists."""

    def __init__(self, path: Path) -> None:
        """Map `path`. Raises WeightError when it is missing, unreadable, empty or not a regular file."""
        self.path = path
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its other end
                raise self.error("is not a regular file")
            with path.open("rb") as file:
                self.buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise WeightError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:  # mmap refuses a file of no bytes
            raise WeightError(f"{path}: cannot be read: {error}") from error

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return len(self.buffer)

    def error(self, problem: str) -> WeightError:
        """A WeightError about this file, for the caller to raise."""
        return WeightError(f"{self.path}: {problem}")

    def truncated(self, what: str, num_bytes: int, start: int) -> WeightError:
        """The error for `what`, whose `num_bytes` bytes from `start` on go beyond the end of the file."""
        return self.error(
            f"{what} needs {num_bytes} bytes at byte {start}, the file has {self.size}; {_DAMAGED}"
        )

    def weights(self, entries: Iterable[TensorEntry], data_start: int) -> dict[str, Weight]:
        """The tensors `entries` by name, in their order, as views of the file.

        `data_start` is the byte at which the file's data section begins. Raises WeightError for a name used
        twice, a row that is no whole number of blocks, data outside the file, or two tensors that claim the
        same bytes.
        """
        weights: dict[str, Weight] = {}
        spans: list[tuple[int, int, str]] = []
        for entry in entries:
            if entry.name in weights:
                raise self.error(f"two tensors are named {entry.name!r}; {_DAMAGED}")
            start = data_start + entry.offset
            weight = weights[entry.name] = self._cut(entry, start)
            spans.append((start, start + weight.nbytes, entry.name))
        spans.sort()
        for (_, end, name), (start, _, next_name) in pairwise(spans):
            if start < end:
                raise self.error(
                    f"tensor {next_name!r} begins at byte {start}, before {name!r} ends at {end}; {_DAMAGED}"
                )
        return weights

    def _cut(self, entry: TensorEntry, start: int) -> Weight:
        num_rows = math.prod(entry.shape[:-1])
        num_cols = entry.shape[-1] if entry.shape else 1
        try:
            row_bytes = entry.format.row_bytes(num_cols)
        except WeightError as error:
            raise self.error(f"tensor {entry.name!r}: {error}") from error
        num_bytes = num_rows * row_bytes
        if num_bytes > self.size - start:
            raise self.truncated(f"tensor {entry.name!r} of shape {entry.shape}", num_bytes, start)
        # Only a tensor without elements can have more; numpy could not represent such a shape.
        if max(num_rows, row_bytes) > self.size:
            raise self.error(
                f"tensor {entry.name!r} has shape {entry.shape} in a file of {self.size}; {_DAMAGED}"
            )
        data = np.frombuffer(self.buffer, np.uint8)[start : start + num_bytes]
        return Weight(entry.name, entry.shape, entry.format, data.reshape(num_rows, row_bytes))


def release_pages(data: np.ndarray) -> None:
    """Remove the pages of a mapped file that hold `data` from this process's memory.

    They stay in the system's cache of files, and are mapped again when `data` is read. Does nothing if
    `data` is not a view of a mapped file, or if the system cannot do it.
    """
    owner: object = data
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    if not isinstance(owner, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = data.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (start + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < end:
        owner.madvise(mmap.MADV_DONTNEED, first, end - first)
