"""Many streams at once: what each says does not depend on the others, on preemptions, or on who leaves."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from octavo.config import EngineConfig
from octavo.frontend.llm_engine import LLMEngine
from octavo.frontend.output_collector import OutputCollector
from octavo.scheduler.request import Request
from octavo.scheduler.request_table import RequestTable
from octavo.scheduler.scheduler import Scheduler
from octavo.types.options import RequestOptions
from octavo.types.outputs import CompletionOutput, RequestOutput
from octavo.types.params import RequestOutputKind, SamplingParams
from tests.native import BACKENDS

SLOW = {f"slow {number}": RequestOptions(priority=9) for number in range(4)}
URGENT = {f"urgent {number}": RequestOptions(priority=0) for number in range(2)}


def make_streams(model: Path, **settings: Any) -> Streams:
    defaults = {"block_size": 16, "max_model_len": 64, "kv_cache_memory": "8MiB"}
    config = EngineConfig.from_settings(model=str(model), **{**defaults, **settings})
    return Streams(LLMEngine.from_config(config))


def scheduler_of(engine: LLMEngine) -> Scheduler:
    return engine.client.core.scheduler


def make_params(seed: int, max_tokens: int, **fields: Any) -> SamplingParams:
    kind = RequestOutputKind.DELTA
    return SamplingParams(
        temperature=0.9, seed=seed, max_tokens=max_tokens, ignore_eos=True, output_kind=kind, **fields
    )


class Streams:
    """The requests of one engine, and what each says step by step."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self.ready: list[OutputCollector] = []

    def add(
        self, name: str, prompt: str, params: SamplingParams, options: RequestOptions | None = None
    ) -> None:
        request = self.engine.input_processor.process_inputs(prompt, params, options)
        self.engine.add_processed(name, request, self.ready.append)

    def step(self) -> list[RequestOutput]:
        self.engine.step()
        outputs = [collector.get_nowait() for collector in self.ready]
        self.ready.clear()
        return [output for output in outputs if output is not None]

    def drain(self) -> dict[str, list[RequestOutput]]:
        """Step to the end; what each stream says."""
        said: dict[str, list[RequestOutput]] = {}
        while self.engine.has_unfinished_requests():
            for output in self.step():
                said.setdefault(output.request_id, []).append(output)
        assert_idle(self.engine)
        return said


def assert_idle(engine: LLMEngine) -> None:
    scheduler = scheduler_of(engine)
    scheduler.check()
    assert not scheduler.has_unfinished_requests()
    assert scheduler.kv_cache.usage == 0


def whole(stream: list[RequestOutput]) -> tuple[Any, ...]:
    """What a stream adds up to."""
    parts: list[CompletionOutput] = [output.outputs[0] for output in stream]
    assert [output.finished for output in stream] == [False] * (len(stream) - 1) + [True]
    return (
        "".join(part.text for part in parts),
        [token_id for part in parts for token_id in part.token_ids],
        [place for part in parts for place in part.logprobs or []],
        parts[-1].finish_reason,
        parts[-1].stop_reason,
    )


def late_stop(text: str) -> str:
    """Two characters that a text ends with, more or less, and that it has nowhere before."""
    pairs = [text[start : start + 2] for start in reversed(range(len(text) - 1))]
    return next(pair for pair in pairs if pair.isascii() and text.count(pair) == 1)


@pytest.fixture
def preempted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """By request, the tokens it had generated when it was last preempted."""
    lengths: dict[str, int] = {}
    original = RequestTable.preempt

    def noting(self: RequestTable, victim: Request) -> None:
        lengths[victim.request_id.split(".")[0]] = victim.num_output_tokens
        original(self, victim)

    monkeypatch.setattr(RequestTable, "preempt", noting)
    return lengths


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("depth", [1, 2])
def test_preempted_streams_have_the_text_of_each_one_alone(
    tiny_model: Path, preempted: dict[str, int], backend: str, depth: int
) -> None:
    names = {**SLOW, **URGENT}
    params = {name: make_params(seed, 34, logprobs=2) for seed, name in enumerate(names)}
    roomy = make_streams(tiny_model, backend=backend)
    alone = {}
    for name in names:
        roomy.add(name, f"{name} {'x' * 20}", params[name])
        text = whole(roomy.drain()[name])[0]
        params[name] = make_params(params[name].seed, 34, logprobs=2, stop=[late_stop(text)])
        roomy.add(name, f"{name} {'x' * 20}", params[name])
        alone[name] = whole(roomy.drain()[name])
    assert not preempted
    small = make_streams(
        tiny_model,
        backend=backend,
        pipeline_depth=depth,
        scheduling_policy="priority",
        max_num_seqs=4,
        num_blocks_override=13,  # for three
    )
    early: dict[str, list[RequestOutput]] = {name: [] for name in names}
    for name, options in SLOW.items():
        small.add(name, f"{name} {'x' * 20}", params[name], options)
    for _ in range(6):
        for output in small.step():
            early[output.request_id].append(output)
    for name, options in URGENT.items():
        small.add(name, f"{name} {'x' * 20}", params[name], options)
    late = small.drain()
    assert {name: whole(early[name] + late[name]) for name in names} == alone
    assert {finish_reason for *_, finish_reason, _ in alone.values()} == {"stop"}
    assert all(len(logprobs) == len(token_ids) for _, token_ids, logprobs, _, _ in alone.values())
    assert preempted
    assert preempted.keys() <= SLOW.keys()
    assert all(0 < length < len(alone[name][1]) for name, length in preempted.items())


@pytest.mark.parametrize("kind", RequestOutputKind)
@pytest.mark.parametrize("num_answers", [1, 2])
def test_cached_tokens_are_those_of_the_prompt_once_however_it_is_told(
    tiny_model: Path, kind: RequestOutputKind, num_answers: int
) -> None:
    engine = make_streams(tiny_model)
    params = SamplingParams(n=num_answers, max_tokens=3, ignore_eos=True, output_kind=kind)
    for name, expected in (("cold", 0), ("warm", 49)):
        engine.add(name, "x" * 50, params)
        outputs = engine.drain()[name]
        assert {output.num_cached_tokens for output in outputs} == {expected}
        assert outputs[-1].finished


def test_aborts_at_any_moment_change_no_other_stream(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(1)
    streams = make_streams(tiny_model, max_num_seqs=8)
    engine = streams.engine
    heard: set[str] = set()
    gone: set[str] = set()
    finished: set[str] = set()
    for number in range(500):
        streams.add(f"r{number}", f"{number % 7}", make_params(number, rng.randint(1, 3)))
        leavers = {f"r{rng.randint(max(number - 5, 0), number)}" for _ in range(rng.randint(0, 2))}
        engine.abort_requests(leavers)
        gone |= leavers
        for output in streams.step():
            assert output.request_id not in gone | finished
            heard.add(output.request_id)
            finished |= {output.request_id} if output.finished else set()
        here = {f"r{earlier}" for earlier in range(number + 1)} - gone - finished
        assert {core_id.split(".")[0] for core_id in scheduler_of(engine).requests} == here
    finished |= streams.drain().keys()
    assert finished | gone == {f"r{number}" for number in range(500)}
    assert min(len(gone - heard), len(gone & heard - finished), len(gone & finished)) > 20, "at any moment"
    assert not caplog.records
