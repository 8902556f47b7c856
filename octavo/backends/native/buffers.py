"""Where values lie: columns of one arena, shared by values that are never needed at the same time.

    columns        operations →
     ┌──────────────────────────────
     │ x  x  x  x │ h  h  h │ y  y
     │    q  q  q  q │      │
     │       angles  angles  angles

A value of c columns at column `offset` is, in a step of T tokens, the rows [T, c] that begin offset * T'
numbers into the arena, T' being T rounded up to a multiple of 16.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from octavo.backends.native.operations import Recording, Value

ALIGNMENT = 16  # columns: with T' a multiple of 16 every buffer begins on a cache line


@dataclass(frozen=True, slots=True)
class Lifetime:
    """From the operation that writes a value to the last one that reads it, both included."""

    num_columns: int
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        """Whether both are alive during some operation."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """The column of the arena at which each value begins, and the number of columns in all."""

    offsets: dict[Value, int]
    num_columns: int


def plan_buffers(recording: Recording) -> BufferPlan:
    """An offset for every value but the inputs, which are the caller's. Outputs live on to the end."""
    lifetimes = find_lifetimes(recording)
    owners = share_buffers(recording, lifetimes)
    buffers: dict[Value, Lifetime] = {}
    for value, owner in owners.items():  # in the order they are written: an owner comes first and ends first
        buffers[owner] = replace(lifetimes[owner], last=lifetimes[value].last)
    offsets = dict(zip(buffers, place(list(buffers.values())), strict=True))
    ends = [offsets[owner] + _padded(buffer) for owner, buffer in buffers.items()]
    return BufferPlan({value: offsets[owner] for value, owner in owners.items()}, max(ends, default=0))


def find_lifetimes(recording: Recording) -> dict[Value, Lifetime]:
    """The lifetime of every value that an operation writes, in the order they are written."""
    last = {
        view.value: index for index, operation in enumerate(recording.operations) for view in operation.reads
    }
    last |= {view.value: len(recording.operations) for view in recording.outputs}
    return {
        operation.out.value: Lifetime(operation.out.num_columns, index, last.get(operation.out.value, index))
        for index, operation in enumerate(recording.operations)
    }


def share_buffers(recording: Recording, lifetimes: Mapping[Value, Lifetime]) -> dict[Value, Value]:
    """The value whose buffer each value lies in: its own, or that of a value which its operation overwrites.

    A value is overwritten where it is whole, no input of the program, and not read later.
    """
    owners: dict[Value, Value] = {}
    for index, operation in enumerate(recording.operations):
        old, new = operation.overwrites, operation.out.value
        if old is not None and old.is_whole and old.value in owners and lifetimes[old.value].last == index:
            owners[new] = owners[old.value]
        else:
            owners[new] = new
    return owners


def place(lifetimes: Sequence[Lifetime]) -> list[int]:
    """An offset for each: the narrowest gap that is wide enough between those that live at the same time."""
    offsets: list[int] = []
    for number, lifetime in enumerate(lifetimes):
        meanwhile = (
            (start, start + _padded(other))
            for start, other in zip(offsets, lifetimes[:number], strict=True)
            if other.overlaps(lifetime)
        )
        offsets.append(_best_gap(meanwhile, _padded(lifetime)))
    return offsets


def _best_gap(taken: Iterable[tuple[int, int]], width: int) -> int:
    """Where the narrowest gap of at least `width` begins; behind everything if there is none."""
    gaps: list[tuple[int, int]] = []  # width, where it begins
    end = 0
    for start, stop in sorted(taken):
        gaps.append((start - end, end))
        end = max(end, stop)
    return min((gap for gap in gaps if gap[0] >= width), default=(width, end))[1]


def _padded(lifetime: Lifetime) -> int:
    return -(-lifetime.num_columns // ALIGNMENT) * ALIGNMENT
