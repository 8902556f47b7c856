"""Small worlds, each with its own settings and random events: in all of them every promise holds.

`make test` tries a thousand, always the same; `make test-all` tries fifty thousand from a fresh seed. A
failure says which few events lead to it.
"""

from __future__ import annotations

import pytest

from octavo.engine import core as engine_core
from tests.scheduler.shrink import failure_of, report, shrink
from tests.seeds import Search

NUM_PARTS = 20


@pytest.fixture(autouse=True)
def silent_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_core.logger, "disabled", True)  # thousands of steps fail, as they were told to


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_every_promise_holds_in_random_traces(part: int, search: Search) -> None:
    for seed in search.seeds(usual=1000, large=50_000, part=part, num_parts=NUM_PARTS):
        failure = failure_of(seed)
        if failure is not None:
            raise AssertionError(report(seed, shrink(seed, failure))) from failure.error


def test_a_failing_world_is_told_by_the_few_events_that_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: a reset of the prefix cache says that it was done, though a request was running."""
    monkeypatch.setattr(engine_core.EngineCore, "reset_prefix_cache", lambda *arguments, **named: True)
    shrunk = []
    for seed in range(100):
        failure = failure_of(seed)
        if failure is None or len(failure.events) < 20:
            continue
        small = shrink(seed, failure)
        assert len(small.events) <= len(failure.events) / 2
        assert small.is_like(failure_of(seed, small.events))
        assert "reset the prefix cache" in report(seed, small)
        shrunk.append([name for _, name, _ in small.events])
    assert min(shrunk, key=len) == ["add", "reset the prefix cache"]
