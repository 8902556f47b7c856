"""Plans the buffers of values: columns of one arena. Values that are never alive together share columns.

    columns        operations →
     ┌──────────────────────────────
     │ x  x  x  x │ h  h  h │ y  y
     │    q  q  q  q │      │
     │       angles  angles  angles

In a step of T tokens, a value of c columns at column `offset` is an array [T, c]. It begins offset * T'
numbers into the arena, where T' is T rounded up to a multiple of 16.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from octavo.backends.native.operations import Recording, Value

ALIGNMENT = 16  # columns: with T' a multiple of 16 every buffer begins on a cache line


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The operations from the one that writes a value to the last one that reads it, both included."""

    num_columns: int
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        """Whether both values are alive during some operation."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """The column of the arena at which each value begins, and the number of columns of the whole arena."""

    offsets: dict[Value, int]
    num_columns: int


def plan_buffers(recording: Recording) -> BufferPlan:
    """An offset for every value except the inputs, which lie in the caller's memory. Outputs stay alive to
    the end of the program.
    """
    lifetimes = find_lifetimes(recording)
    owners = share_buffers(recording, lifetimes)
    buffers: dict[Value, Lifetime] = {}
    for value, owner in owners.items():  # in the order of writing: a later value of a buffer ends later
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
    """For each value, the value that owns its buffer: itself, or the owner of the value that it overwrites.

    An operation overwrites a value only if it reads the whole value, the value is no input of the program,
    and no later operation reads it.
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
    """An offset for each lifetime, in order: the narrowest gap that is wide enough between the buffers placed
    so far that are alive at the same time.
    """
    offsets: list[int] = []
    for number, lifetime in enumerate(lifetimes):
        taken = (
            (start, start + _padded(other))
            for start, other in zip(offsets, lifetimes[:number], strict=True)
            if other.overlaps(lifetime)
        )
        offsets.append(_best_gap(taken, _padded(lifetime)))
    return offsets


def _best_gap(taken: Iterable[tuple[int, int]], width: int) -> int:
    """The start of the narrowest gap of at least `width`. Without such a gap, the end of all `taken`."""
    gaps: list[tuple[int, int]] = []  # width, where it begins
    end = 0
    for start, stop in sorted(taken):
        gaps.append((start - end, end))
        end = max(end, stop)
    return min((gap for gap in gaps if gap[0] >= width), default=(width, end))[1]


def _padded(lifetime: Lifetime) -> int:
    return -(-lifetime.num_columns // ALIGNMENT) * ALIGNMENT
