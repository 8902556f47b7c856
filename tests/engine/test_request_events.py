"""Events reach the step's news in order, once, with the times at which they happened."""

from __future__ import annotations

from octavo.engine.request_events import RequestEvents
from octavo.types.outputs import EngineCoreEvent, EngineCoreEventType, EngineCoreOutputs
from tests.engine.observed import Clock, Seen, plan


def test_events_come_with_the_next_news_and_only_with_them() -> None:
    clock = Clock()
    events = RequestEvents(clock)

    def step(now: float) -> EngineCoreOutputs:
        clock.now = now
        outputs = EngineCoreOutputs([])
        events.step_done(plan(), outputs)
        return outputs

    clock.now = 1.0
    events.request_queued(Seen("a"))
    clock.now = 2.0
    events.request_queued(Seen("b"))
    events.request_admitted(Seen("a"), 0)
    first = step(3.0)
    clock.now = 4.0
    events.request_preempted(Seen("a"))
    second, third = step(5.0), step(6.0)
    assert first.events == {
        "a": [
            EngineCoreEvent(EngineCoreEventType.QUEUED, 1.0),
            EngineCoreEvent(EngineCoreEventType.SCHEDULED, 2.0),
        ],
        "b": [EngineCoreEvent(EngineCoreEventType.QUEUED, 2.0)],
    }
    assert second.events == {"a": [EngineCoreEvent(EngineCoreEventType.PREEMPTED, 4.0)]}
    assert third.events == {}
    assert [first.timestamp, second.timestamp, third.timestamp] == [3.0, 5.0, 6.0]
