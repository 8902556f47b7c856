"""Fifty thousand small worlds, each with its own settings and fate: in all of them every promise holds.

A failure prints the seed of its world; `run_world(seed)` runs it again.
"""

from __future__ import annotations

import random

import pytest

from octavo.engine import core as engine_core
from tests.fakes import BrokenContract
from tests.scheduler.world import World

NUM_WORLDS = 50_000
NUM_PARTS = 50


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_every_promise_holds_in_random_traces(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_core.logger, "disabled", True)  # thousands of steps fail, as they were told to
    for seed in range(part, NUM_WORLDS, NUM_PARTS):
        try:
            run_world(seed)
        except (Exception, BrokenContract) as error:
            raise AssertionError(f"the world of seed {seed} broke: {error!r}") from error


def run_world(seed: int) -> None:
    World(random.Random(seed)).run()
