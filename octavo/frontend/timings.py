"""`RequestTimings`: collects the times of a request's events and tokens for its `RequestMetrics`."""

from __future__ import annotations

from octavo.types.outputs import EngineCoreEvent, EngineCoreEventType, RequestMetrics


class RequestTimings:
    """The times of a user's request so far: its events and its tokens. Mutable.

    `arrival_time` is in seconds since the epoch. `arrival` is the same moment on the core's clock. All other
    times that this class receives are on the core's clock.
    """

    __slots__ = (
        "_arrival_time",
        "_epoch",
        "_first_token",
        "_last_token",
        "_num_intervals",
        "_num_preemptions",
        "_queued",
        "_scheduled",
        "_sum_of_intervals",
    )

    def __init__(self, arrival_time: float, arrival: float) -> None:
        self._arrival_time = arrival_time
        self._epoch = arrival_time - arrival  # seconds since the epoch = _epoch + time on the core's clock
        self._queued: float | None = None
        self._scheduled: float | None = None
        self._first_token: float | None = None
        self._last_token: float | None = None
        self._num_preemptions = 0
        self._num_intervals = 0
        self._sum_of_intervals = 0.0  # seconds

    def take_event(self, event: EngineCoreEvent) -> None:
        """Add an event of one of the request's answers."""
        match event.type:
            case EngineCoreEventType.QUEUED if self._queued is None:
                self._queued = self._epoch + event.timestamp
            case EngineCoreEventType.SCHEDULED if self._scheduled is None:
                self._scheduled = self._epoch + event.timestamp
            case EngineCoreEventType.PREEMPTED:
                self._num_preemptions += 1

    def take_tokens(self, count: int, now: float, previous: float | None) -> None:
        """Add `count` tokens of one answer, which came at `now`. `previous` is the time of the answer's
        tokens before these, or None if these are the first.
        """
        if self._first_token is None:
            self._first_token = self._epoch + now
        self._last_token = self._epoch + now
        if previous is None:
            self._num_intervals += count - 1
        else:
            self._num_intervals += count
            self._sum_of_intervals += now - previous

    def make_metrics(self, finished: float | None) -> RequestMetrics:
        """The metrics so far. `finished` is the time at which the last answer ended."""
        return RequestMetrics(
            self._arrival_time,
            self._queued,
            self._scheduled,
            self._first_token,
            self._last_token,
            None if finished is None else self._epoch + finished,
            self._num_preemptions,
            self._sum_of_intervals / self._num_intervals if self._num_intervals else None,
        )
