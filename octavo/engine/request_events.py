"""`RequestEvents`: when the core queued, started and preempted each request, for the front end's timings."""

from __future__ import annotations

import time
from collections.abc import Callable

from octavo.types.observer import ObservedRequest, Observer
from octavo.types.outputs import EngineCoreEvent, EngineCoreEventType, EngineCoreOutputs
from octavo.types.steps import SchedulerOutput


class RequestEvents(Observer):
    """Fills `EngineCoreOutputs.events` and `timestamp`. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._events: dict[str, list[EngineCoreEvent]] = {}  # since the last step

    def request_queued(self, request: ObservedRequest) -> None:
        self._record(request, EngineCoreEventType.QUEUED)

    def request_admitted(self, request: ObservedRequest, num_cached_tokens: int) -> None:
        self._record(request, EngineCoreEventType.SCHEDULED)

    def request_preempted(self, request: ObservedRequest) -> None:
        self._record(request, EngineCoreEventType.PREEMPTED)

    def step_done(self, output: SchedulerOutput | None, outputs: EngineCoreOutputs) -> None:
        outputs.timestamp = self._clock()
        if self._events:
            outputs.events = self._events
            self._events = {}

    def _record(self, request: ObservedRequest, kind: EngineCoreEventType) -> None:
        self._events.setdefault(request.request_id, []).append(EngineCoreEvent(kind, self._clock()))
