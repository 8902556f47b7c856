"""Turns of one session, `s`, and what they are to get."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from msgspec.structs import replace

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
_NUMBERS = count()


def a_turn(prompt: Sequence[int], params: SamplingParams = SIX, **fields: object) -> EngineCoreRequest:
    """A turn with a request id of its own, `s0`, `s1` and so on."""
    return make_request(f"s{next(_NUMBERS)}", prompt, params, **{"session_id": "s", **fields})


def add(core: EngineCore, *turns: EngineCoreRequest) -> None:
    """Add turns as a front end does that knows whether their session has begun."""
    for turn in turns:
        has_begun = core.scheduler.table.sessions.get(turn.session_id) is not None
        core.add_request(replace(turn, continues_session=has_begun))


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


def answers_in(outputs: Sequence[EngineCoreOutput]) -> list[list[int]]:
    """The tokens of each turn that ended in `outputs`."""
    answers: list[list[int]] = [[]]
    for output in outputs:
        answers[-1] += output.new_token_ids
        if output.finish_reason is not None:
            answers.append([])
    return answers[:-1]


def run_turn(core: EngineCore, turn: EngineCoreRequest) -> list[EngineCoreOutput]:
    """Add a turn and run it to its end; its outputs."""
    add(core, turn)
    return run_to_end(core)[turn.request_id]


def run_turns(core: EngineCore) -> list[EngineCoreOutput]:
    """Run to the end; the outputs of all turns of the session, one turn after the other."""
    outputs = run_to_end(core)
    return [output for request_id in outputs if request_id[0] == "s" for output in outputs[request_id]]


def ends(outputs: Sequence[EngineCoreOutput]) -> list[FinishReason]:
    return [output.finish_reason for output in outputs if output.finish_reason is not None]


def admissions(core: EngineCore) -> list[NewRequestData]:
    runner = core.executor.runner
    assert isinstance(runner, FakeExecutor)
    return [new for plan in runner.outputs for new in plan.scheduled_new_reqs]


def has_session(core: EngineCore) -> bool:
    return core.scheduler.table.sessions.get("s") is not None


def context_of(core: EngineCore) -> list[int]:
    """The tokens that the idle session holds."""
    session = core.scheduler.table.sessions.get("s")
    assert session is not None
    assert session.turn is None
    return session.context.token_ids


def worker_is_empty(core: EngineCore) -> bool:
    core.step()
    core.check()
    return not core.executor.runner.rows and core.scheduler.kv_cache.usage == 0
