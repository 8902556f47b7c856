"""The observers that an engine is configured to have."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from octavo.config import ObservationConfig
from octavo.engine.request_events import RequestEvents
from octavo.engine.statistics import Statistics
from octavo.engine.statistics_log import StatisticsLog
from octavo.types.observer import EngineState, Observer


def make_observers(
    config: ObservationConfig, state: EngineState, clock: Callable[[], float]
) -> Iterator[Observer]:
    """The observers in the order in which they must observe. `clock` is monotonic, in seconds.

    Raises ConfigError for an endpoint that cannot be bound.
    """
    statistics = Statistics(state)
    yield statistics
    yield RequestEvents(clock)
    if config.log_stats:
        yield StatisticsLog(statistics, clock)
    if config.kv_events_endpoint is not None:
        from octavo.kv_events.observer import KVEventsObserver  # ZeroMQ is loaded only where it is used

        yield KVEventsObserver(config)
