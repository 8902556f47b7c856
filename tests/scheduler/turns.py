"""Turns of one session, `s`, and what they are to get."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.engine.core import EngineCore
from octavo.types.outputs import EngineCoreOutput, FinishReason
from octavo.types.params import SamplingParams
from octavo.types.requests import EngineCoreRequest
from octavo.types.steps import NewRequestData
from tests.fakes import FakeExecutor, generate_after, make_params, make_request, run_to_end

SIX = make_params(6, ignore_eos=True)
FOREVER = make_params(10_000, ignore_eos=True)
MODEL_LEN = 10_000
ERROR, ABORT = FinishReason.ERROR, FinishReason.ABORT


def a_turn(prompt: Sequence[int], params: SamplingParams = SIX, **fields: object) -> EngineCoreRequest:
    return make_request("s", prompt, params, **{"resumable": True, **fields})


def the_end() -> EngineCoreRequest:
    return a_turn([], resumable=False)


def due(*turns: EngineCoreRequest) -> list[list[int]]:
    """What each turn is to get: the context of the one before, without the last token, and its own prompt."""
    context: list[int] = []
    answers = []
    for turn in turns:
        context += turn.prompt_token_ids
        answer, _ = generate_after(context, turn, MODEL_LEN)
        answers.append(answer)
        context += answer[:-1]
    return answers


def answers_in(news: Sequence[EngineCoreOutput]) -> list[list[int]]:
    """The tokens of each turn that ended in `news`."""
    answers: list[list[int]] = [[]]
    for output in news:
        answers[-1] += output.new_token_ids
        if output.finish_reason is not None:
            answers.append([])
    return answers[:-1]


def run_turn(core: EngineCore, turn: EngineCoreRequest) -> list[EngineCoreOutput]:
    core.add_request(turn)
    return run_to_end(core)["s"]


def ends(news: Sequence[EngineCoreOutput]) -> list[FinishReason]:
    return [output.finish_reason for output in news if output.finish_reason is not None]


def admissions(core: EngineCore) -> list[NewRequestData]:
    runner = core.executor.runner
    assert isinstance(runner, FakeExecutor)
    return [new for plan in runner.outputs for new in plan.scheduled_new_reqs]


def worker_is_empty(core: EngineCore) -> bool:
    core.step()
    core.scheduler.check()
    return not core.executor.runner.rows and core.scheduler.kv_cache.usage == 0
