"""When a line is logged, and what it says."""

from __future__ import annotations

import logging

import pytest

from octavo.engine.statistics import Statistics
from octavo.engine.statistics_log import StatisticsLog
from octavo.types.observer import Observers
from octavo.types.outputs import EngineCoreOutputs
from tests.engine.observed import Clock, Seen, State, news, plan


class Operated:
    """An engine whose log is read. `step` takes a second."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "octavo")
        self.caplog = caplog
        self.clock = Clock(1000.0)
        self.state = State()
        statistics = Statistics(self.state)
        self.observers = Observers([statistics, StatisticsLog(statistics, self.clock)])

    def begin(self, name: str, num_cached_tokens: int = 0, num_tokens: int = 10) -> None:
        self.observers.request_queued(Seen(name))
        self.observers.request_admitted(Seen(name, num_tokens=num_tokens), num_cached_tokens)
        self.state.num_running += 1

    def end(self, name: str) -> None:
        self.observers.request_finished(Seen(name))
        self.state.num_running -= 1

    def step(self, ends: str | None = None, new_tokens: int = 1, **num_scheduled_tokens: int) -> None:
        planned = plan(**num_scheduled_tokens)
        self.observers.step_planned(planned)
        self.clock.now += 1
        if ends is not None:
            self.end(ends)
        self.observers.step_done(planned, EngineCoreOutputs(news(a=new_tokens)))

    def lines(self) -> list[str]:
        """What has been logged since the last call."""
        lines = [record.getMessage() for record in self.caplog.records]
        self.caplog.clear()
        return lines


@pytest.fixture
def operated(caplog: pytest.LogCaptureFixture) -> Operated:
    return Operated(caplog)


def test_a_line_says_how_fast_and_how_full(operated: Operated) -> None:
    operated.begin("a", num_cached_tokens=4, num_tokens=16)
    operated.state.num_waiting, operated.state.usage = 2, 0.125
    operated.step(a=12)
    for _ in range(9):
        operated.step(a=1, new_tokens=3)
    assert operated.lines() == [
        "prompt 1.2 tok/s, generation 2.8 tok/s, running 1, waiting 2, KV cache 12.5 %, "
        "prefix cache hits 25.0 %"
    ]


def test_while_there_are_requests_a_line_comes_every_ten_seconds(operated: Operated) -> None:
    operated.begin("a")
    counts = []
    for _ in range(35):
        operated.step(a=1)
        counts.append(len(operated.lines()))
    assert [second for second, count in enumerate(counts, start=1) if count] == [10, 20, 30]


def test_preemptions_are_told_where_there_were_any(operated: Operated) -> None:
    operated.begin("a")
    operated.observers.request_preempted(Seen("a"))
    for _ in range(20):
        operated.step(a=1)
    with_them, without = operated.lines()
    assert with_them.endswith("prefix cache hits 0.0 %, preemptions 1")
    assert "preemptions" not in without


def test_one_line_tells_that_the_engine_is_idle(operated: Operated) -> None:
    operated.begin("a")
    for _ in range(12):
        operated.step(a=1)
    operated.lines()
    operated.step(ends="a", a=1)
    (line,) = operated.lines()
    assert line.startswith("prompt 0.0 tok/s, generation 1.0 tok/s, running 0, waiting 0")
    for _ in range(50):
        operated.step(new_tokens=0)
    assert operated.lines() == []


def test_short_requests_share_a_line_whose_rates_are_of_the_time_they_took(operated: Operated) -> None:
    said = []
    for _ in range(5):
        operated.begin("a")
        operated.step(ends="a", new_tokens=5, a=10)
        said.append(operated.lines())
        operated.clock.now += 2
    first, *between, last = said
    assert between == [[], [], []]
    assert [len(first), len(last)] == [1, 1]
    assert last[0].startswith("prompt 10.0 tok/s, generation 5.0 tok/s, running 0")


def test_a_request_after_a_long_silence_makes_no_line_at_its_first_token(operated: Operated) -> None:
    operated.begin("a")
    operated.step(ends="a", a=10)
    operated.lines()
    operated.clock.now += 3600
    operated.begin("b")
    operated.step(b=10)
    assert operated.lines() == []
    for _ in range(9):
        operated.step(b=1)
    (line,) = operated.lines()
    assert line.startswith("prompt 1.0 tok/s, generation 1.0 tok/s, running 1")


def test_the_time_after_an_abort_between_steps_is_no_time_with_requests(operated: Operated) -> None:
    operated.begin("a")
    operated.step(a=10)
    operated.end("a")
    operated.clock.now += 1000
    operated.begin("b")
    operated.step(ends="b", b=10)
    (line,) = operated.lines()
    assert line.startswith("prompt 10.0 tok/s, generation 1.0 tok/s, running 0")
