"""`Journal`: the latest steps' events and what is cached after them, between the engine and the publisher.

The engine writes and never waits: no lock, no queue that may be full. When the journal is, the oldest step
makes room, and who has not read it by then (the publisher itself, or a subscriber who asks for a replay)
finds a gap in the sequence numbers. Knows nothing of sockets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from octavo.types.kv_events import AllBlocksCleared
from octavo.types.observer import StoredBlock


class RemovedBlock(NamedTuple):
    """Content that no block holds any longer."""

    block_hash: bytes
    group_id: int


Event = StoredBlock | RemovedBlock | AllBlocksCleared


class Step(NamedTuple):
    """The events of one step, in order."""

    sequence: int
    timestamp: float  # seconds since the epoch
    events: list[Event]


class Snapshot(NamedTuple):
    """What was cached at one moment."""

    next_sequence: int  # with this step and those after it, a reader follows what is cached
    timestamp: float  # seconds since the epoch
    blocks: list[StoredBlock]


class Journal:
    """Keeps the last `capacity` steps that had events. One thread writes; any other may read meanwhile.

    Sequence numbers begin at the clock's microseconds: those of an engine that was started anew lie far
    beyond whatever it gave out before, so to its readers a restart is a gap that no replay fills.
    """

    def __init__(self, capacity: int, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._first_sequence = int(clock() * 1e6)
        self._steps: list[Step | None] = [None] * capacity  # a step's place: its number modulo the capacity
        self.next_sequence = self._first_sequence
        self.cached: dict[tuple[bytes, int], StoredBlock] = {}  # by hash and group; written as events happen

    def append(self, events: list[Event]) -> None:
        """Add a step's events; the oldest step may make room for it. Keeps the list."""
        step = Step(self.next_sequence, self._clock(), events)
        self._steps[step.sequence % len(self._steps)] = step
        self.next_sequence += 1  # last: whoever sees the number finds the step

    def read(self, sequence: int) -> Iterator[Step]:
        """The steps from `sequence` on that are still here, in order, up to the latest."""
        capacity = len(self._steps)
        sequence = max(sequence, self._first_sequence)
        while (sequence := max(sequence, self.next_sequence - capacity)) < self.next_sequence:
            step = self._steps[sequence % capacity]
            if step is not None and step.sequence == sequence:  # else it has been written over meanwhile
                yield step
            sequence += 1

    def take_snapshot(self) -> Snapshot:
        """What is cached now, with the step to go on from.

        The blocks may be ahead of that step. To see its events again does no harm: each says what becomes of
        a block whatever it was, so the last one about a block decides.
        """
        sequence = self.next_sequence  # first, for the blocks must not be behind it
        blocks = self.cached.copy()  # one call that no other thread interrupts
        return Snapshot(sequence, self._clock(), list(blocks.values()))
