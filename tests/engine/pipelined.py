"""Requests for cores that have several steps in flight."""

from __future__ import annotations

import pytest

from octavo.engine.core import EngineCore
from octavo.types.requests import EngineCoreRequest
from octavo.types.steps import SchedulerOutput
from tests.fakes import FakeExecutor, generate_alone, make_params, make_request

MODEL_LEN = 10_000
ANSWER = make_params(6, ignore_eos=True)
DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])
IN_FLIGHT = pytest.mark.parametrize("depth", [2, 3])


def a_request(name: str, length: int = 6, max_tokens: int = 6, **fields: object) -> EngineCoreRequest:
    params = make_params(max_tokens, ignore_eos=True)
    return make_request(name, [1000 + ord(name), *range(1, length)], params, **fields)


def add(core: EngineCore, names: str) -> list[EngineCoreRequest]:
    requests = [a_request(name) for name in names]
    for request in requests:
        core.add_request(request)
    return requests


def due(request: EngineCoreRequest) -> list[int]:
    return generate_alone(request, MODEL_LEN)[0]


def plans_of(core: EngineCore) -> list[SchedulerOutput]:
    runner = core.executor.runner
    assert isinstance(runner, FakeExecutor)
    return runner.outputs


def assert_nothing_is_left(core: EngineCore) -> None:
    assert not core.has_unfinished_requests()
    for _ in range(core.depth + 1):
        assert core.step().outputs == []
        core.check()
    assert not core.executor.runner.rows
    assert core.scheduler.kv_cache.usage == 0
