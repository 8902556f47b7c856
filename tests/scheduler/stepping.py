"""A core that is stepped through and looked at: who runs how many tokens in a step."""

from __future__ import annotations

from octavo.engine.core import EngineCore
from octavo.types.steps import SchedulerOutput
from tests.fakes import FakeConstraint, FakeExecutor, make_core, make_params, make_request

FOREVER = make_params(10_000, ignore_eos=True)


def a_core(constraint: FakeConstraint, num_blocks: int = 100, **settings: object) -> EngineCore:
    return make_core(num_blocks, constraints=[constraint], **settings)


def add(core: EngineCore, *names: str, length: int = 5, **fields: object) -> None:
    for name in names:
        arrival = float(len(core.scheduler.requests))
        core.add_request(
            make_request(name, [1000 + ord(name)] * length, FOREVER, arrival_time=arrival, **fields)
        )


def step(core: EngineCore) -> SchedulerOutput:
    core.step()
    core.check()
    executor = core.executor.runner
    assert isinstance(executor, FakeExecutor)
    return executor.outputs[-1]
