"""`KVEventsObserver`: publishes the core's events of its prefix cache."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable

from octavo.config import ObservationConfig
from octavo.kv_events.journal import Event, Journal, RemovedBlock
from octavo.kv_events.publisher import Publisher
from octavo.types.kv_events import AllBlocksCleared
from octavo.types.observer import Observer, StoredBlock
from octavo.types.outputs import EngineCoreOutputs
from octavo.types.steps import SchedulerOutput


class KVEventsObserver(Observer):
    """Publishes the events of each step as one batch, until it is closed or garbage-collected, or the process
    ends.

    `clock` gives seconds since the epoch. Raises ConfigError for an endpoint that cannot be bound.
    """

    def __init__(self, config: ObservationConfig, clock: Callable[[], float] = time.time) -> None:
        self._journal = Journal(config.kv_events_buffer_steps, clock)
        self._publisher = Publisher(config, self._journal)
        self._cached = self._journal.cached
        self._events: list[Event] = []  # since the last step
        self._closer = weakref.finalize(self, self._publisher.close)

    @property
    def endpoint(self) -> str:
        """The address of the stream. A wildcard port is replaced by the port that was chosen."""
        return self._publisher.endpoint

    @property
    def replay_endpoint(self) -> str | None:
        """The address of replays, or None."""
        return self._publisher.replay_endpoint

    @property
    def next_sequence(self) -> int:
        """The number that the next batch will have."""
        return self._journal.next_sequence

    def block_stored(self, stored: StoredBlock) -> None:
        self._cached[stored.block_hash, stored.group_id] = stored
        self._events.append(stored)

    def block_removed(self, block_hash: bytes, group_id: int) -> None:
        self._cached.pop((block_hash, group_id), None)
        self._events.append(RemovedBlock(block_hash, group_id))

    def all_blocks_cleared(self) -> None:
        self._cached.clear()
        self._events.append(AllBlocksCleared())
        self._hand_over()  # the cache is cleared between steps, and the next step may come much later

    def step_done(self, output: SchedulerOutput | None, outputs: EngineCoreOutputs) -> None:
        self._hand_over()

    def close(self) -> None:
        """Publish the remaining events, and close the sockets."""
        self._hand_over()
        self._closer()

    def _hand_over(self) -> None:
        if not self._events:
            return
        self._journal.append(self._events)
        self._events = []
        self._publisher.wake()
