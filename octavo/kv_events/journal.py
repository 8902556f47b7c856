"""`Journal`: the events of the latest steps, and the cached blocks after them. It knows no sockets.

The engine writes to the journal and the publisher reads it. The engine never waits: there is no lock, and
when the journal is full, a new step replaces the oldest one. A reader that has not read the oldest step by
then (the publisher, or a subscriber that asks for a replay) finds a gap in the sequence numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from octavo.types.kv_events import AllBlocksCleared
from octavo.types.observer import StoredBlock


class RemovedBlock(NamedTuple):
    """The removal of a cached block: no block has this content any longer."""

    block_hash: bytes
    group_id: int


Event = StoredBlock | RemovedBlock | AllBlocksCleared


class Step(NamedTuple):
    """The events of one step, in order."""

    sequence: int
    timestamp: float  # seconds since the epoch
    events: list[Event]


class Snapshot(NamedTuple):
    """The blocks that were cached at one moment."""

    next_sequence: int  # the first step that a reader must apply after the snapshot
    timestamp: float  # seconds since the epoch
    blocks: list[StoredBlock]


class Journal:
    """Keeps the last `capacity` steps that had events. One thread writes. Other threads may read meanwhile.

    Sequence numbers begin at the clock's time in microseconds. So after a restart of the engine they are far
    greater than all earlier ones, and readers see the restart as a gap that no replay fills.
    """

    def __init__(self, capacity: int, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._first_sequence = int(clock() * 1e6)
        self._steps: list[Step | None] = [None] * capacity  # by sequence number modulo the capacity
        self.next_sequence = self._first_sequence
        self.cached: dict[tuple[bytes, int], StoredBlock] = {}  # by hash and group; written as events happen

    def append(self, events: list[Event]) -> None:
        """Add a step's events, in place of the oldest step if the journal is full. Keeps the list itself."""
        step = Step(self.next_sequence, self._clock(), events)
        self._steps[step.sequence % len(self._steps)] = step
        self.next_sequence += 1  # last, so that a reader that sees the number also finds the step

    def read(self, sequence: int) -> Iterator[Step]:
        """The steps from `sequence` to the latest that the journal still has, in order."""
        capacity = len(self._steps)
        sequence = max(sequence, self._first_sequence)
        while (sequence := max(sequence, self.next_sequence - capacity)) < self.next_sequence:
            step = self._steps[sequence % capacity]
            if step is not None and step.sequence == sequence:  # else the writer has replaced it meanwhile
                yield step
            sequence += 1

    def take_snapshot(self) -> Snapshot:
        """The blocks that are cached now, and the step from which a reader continues.

        The blocks may already include events of that step. Applying these events again does no harm: each
        sets the state of a block regardless of its earlier state, so the last event of a block decides.
        """
        sequence = self.next_sequence  # first, so that the blocks include all earlier steps
        blocks = self.cached.copy()  # atomic: one call that no other thread interrupts
        return Snapshot(sequence, self._clock(), list(blocks.values()))
