"""Which observers a configuration gives, and what they cost where they are not wanted."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

from octavo.config import EngineConfig
from octavo.engine.observers import make_observers
from octavo.errors import ConfigError
from octavo.types.observer import Observer, Observers, StoredBlock
from tests.engine.observed import State


def observers_of(**settings: Any) -> list[str]:
    made = list(make_observers(EngineConfig.from_settings(**settings).observation, State(), time.monotonic))
    Observers(made).close()
    return [type(observer).__name__ for observer in made]


def test_statistics_and_timings_are_always_there() -> None:
    assert observers_of() == ["Statistics", "RequestEvents"]


def test_the_log_and_the_events_are_there_when_asked_for() -> None:
    assert observers_of(log_stats=True) == ["Statistics", "RequestEvents", "StatisticsLog"]
    assert observers_of(kv_events_endpoint="tcp://127.0.0.1:*")[2:] == ["KVEventsObserver"]


def test_zeromq_is_not_loaded_where_no_events_are_published() -> None:
    program = (
        "import sys\n"
        "from tests.engine.test_observers import observers_of\n"
        "observers_of()\n"
        "assert 'zmq' not in sys.modules\n"
        "observers_of(kv_events_endpoint='tcp://127.0.0.1:*')\n"
        "assert 'zmq' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"kv_events_endpoint": "tcp://*:1", "enable_prefix_caching": False},
            "kv_events_endpoint is 'tcp://\\*:1', but without enable_prefix_caching there are no events",
        ),
        (
            {"kv_events_replay_endpoint": "tcp://*:1"},
            "kv_events_replay_endpoint is 'tcp://\\*:1', but no events are published; set kv_events_endpoint",
        ),
    ],
)
def test_settings_of_events_that_there_cannot_be_are_refused(
    settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        EngineConfig.from_settings(**settings)


def test_each_of_several_observers_is_told_everything_in_turn() -> None:
    told: list[tuple[int, str]] = []
    methods = [name for name in vars(Observer) if not name.startswith("_")]

    class Recorder(Observer):
        def __init__(self, number: int) -> None:
            self.number = number

        def __getattribute__(self, name: str) -> Any:
            if name not in methods:
                return super().__getattribute__(name)
            return lambda *arguments: told.append((self.number, name, *arguments))

    observers = Observers([Recorder(1)])
    observers.add(Recorder(2))
    arguments: dict[str, tuple[Any, ...]] = {
        "request_queued": ("a",),
        "request_admitted": ("a", 3),
        "request_preempted": ("a",),
        "request_finished": ("a",),
        "step_planned": ("plan",),
        "step_done": ("plan", "news"),
        "block_stored": (StoredBlock(b"1", None, b"", b"", 0),),
        "block_removed": (b"1", 0),
        "all_blocks_cleared": (),
        "close": (),
    }
    assert sorted(arguments) == sorted(methods), "a new method is to be told here too"
    for name, given in arguments.items():
        getattr(observers, name)(*given)
    assert told == [(number, name, *given) for name, given in arguments.items() for number in (1, 2)]
