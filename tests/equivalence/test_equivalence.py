"""The same request gives the same bits, however the engine is set up and whatever else it is doing.

Every row below is a way of running the same sixteen requests. Each must give exactly the tokens and exactly
the log-probabilities (compared with ==) that each request gives alone, on the same backend, in a fresh engine
of one thread, its prompt in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo import LLM, SamplingParams
from octavo.kv_cache.kv_cache_manager import KVCacheManager
from octavo.scheduler.request_table import RequestTable
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.update import PlannedStep
from octavo.types.outputs import EngineCoreOutputs
from tests.equivalence.drafts import Drafts, install
from tests.native import BACKENDS
from tests.tiny_gemma3 import write_tiny_gemma3
from tests.tiny_model import write_tiny_model

NUM_REQUESTS = 16
COMMON = "In the beginning there was a prompt, and many began the same way: "
# What some of the requests ask of their logits.
ADJUSTED: dict[int, dict[str, Any]] = {
    3: {"presence_penalty": 0.7, "frequency_penalty": 0.3},
    5: {"repetition_penalty": 1.4},
    6: {"logit_bias": {101: 2.5, 32: -100}, "bad_words": ["ab", "x"]},
    9: {"allowed_token_ids": list(range(97, 123)), "repetition_penalty": 0.8},
    12: {"min_tokens": 7, "stop_token_ids": [97, 98, 99], "frequency_penalty": 0.5},
}
Result = tuple[list[int], list[list[tuple[int, float, int]]], str | None]


def _requests() -> list[tuple[str, SamplingParams]]:
    """Sixteen requests of all sorts: short and long, sharing beginnings or not, greedy and seeded."""
    requests = []
    for index in range(NUM_REQUESTS):
        prompt = (COMMON * (1 + index % 3) if index % 2 else "") + f"request {index} " + "word " * (index * 3)
        greedy = index % 4 < 2
        params = SamplingParams(
            temperature=0 if greedy else 0.9,
            top_p=1.0 if index % 3 else 0.9,
            top_k=0 if index % 5 else 20,
            seed=1000 + index,
            max_tokens=8 + index,
            logprobs=3,
            ignore_eos=True,
            **ADJUSTED.get(index, {}),
        )
        requests.append((prompt, params))
    return requests


@dataclass(frozen=True)
class Way:
    """A way of running the requests."""

    settings: dict[str, Any] = field(default_factory=dict)
    together: bool = True  # all in one `generate`; otherwise one after the other, in one engine
    warm: bool = False  # once before, so that the prefix cache has everything
    preempts: bool = False  # somebody has to give up its blocks and begin again
    # Every so many steps everyone has to, with the prefix cache emptied or not.
    begins_again: tuple[int, bool] | None = None
    drafts: bool = False  # tokens are guessed and verified


WAYS = {
    "together": Way(),
    "together, two at a time": Way({"max_num_seqs": 2}),
    "together, steps of 64 tokens": Way({"max_num_batched_tokens": 64}),
    "together, steps of 7 tokens": Way({"max_num_batched_tokens": 7}),
    "together, no prefix cache": Way({"enable_prefix_caching": False}),
    "together, whole prompts": Way({"enable_chunked_prefill": False}),
    "together, by priority": Way({"scheduling_policy": "priority"}),
    "in turn": Way(together=False),
    "in turn, chunks of 64": Way({"max_num_batched_tokens": 64}, together=False),
    "in turn, chunks of 7": Way({"max_num_batched_tokens": 7}, together=False),
    "in turn, chunks of 1": Way({"max_num_batched_tokens": 1}, together=False),
    "in turn, prefix hits": Way(together=False, warm=True),
    "together, prefix hits": Way(warm=True),
    "together, one thread": Way({"threads": 1}),
    "together, blocks of 16": Way({"block_size": 16}),
    "together, blocks of 48": Way({"block_size": 48}),
    "together, blocks of 16, prefix hits": Way({"block_size": 16}, warm=True),
    "together, two steps in flight": Way({"pipeline_depth": 2}),
    "together, three steps in flight of 7 tokens": Way({"pipeline_depth": 3, "max_num_batched_tokens": 7}),
    "together, all preempted at every fifth step": Way(begins_again=(5, False), preempts=True),
    "together, all preempted and the cache emptied": Way(begins_again=(7, True), preempts=True),
    "together, all preempted with two steps in flight": Way(
        {"pipeline_depth": 2}, begins_again=(6, False), preempts=True
    ),
    "together, with drafts": Way(drafts=True),
    "in turn, with drafts": Way(together=False, drafts=True),
    "together, with drafts, steps of 7 tokens": Way({"max_num_batched_tokens": 7}, drafts=True),
    "together, with drafts, two steps in flight": Way({"pipeline_depth": 2}, drafts=True),
    "together, with drafts, all preempted": Way(begins_again=(4, False), preempts=True, drafts=True),
}
# Pools too small for all at once. (Windows leave room for more than these requests come to want.)
SMALL_POOLS = {
    "together, preempted": Way({"num_blocks_override": 34, "block_size": 16}, preempts=True),
    "together, preempted, chunks of 7": Way(
        {"num_blocks_override": 34, "block_size": 16, "max_num_batched_tokens": 7}, preempts=True
    ),
    "together, preempted, two steps in flight": Way(
        {"num_blocks_override": 34, "block_size": 16, "pipeline_depth": 2}, preempts=True
    ),
    "together, preempted, no prefix cache": Way(
        {"num_blocks_override": 19, "enable_prefix_caching": False}, preempts=True
    ),
}
# Where layers have windows.
WITH_WINDOWS = {
    "in turn, little of windows kept": Way(
        {"prefix_cache_retention_interval": 0, "block_size": 16}, together=False, warm=True
    ),
    "together, some of windows kept": Way(
        {"prefix_cache_retention_interval": 32, "block_size": 16}, warm=True
    ),
}


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(family: str, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama, all of whose layers see everything, or a Gemma 3, of whose seven layers six have windows."""
    return tiny_model if family == "llama" else write_tiny_gemma3(tmp_path_factory.mktemp("tiny-gemma3"))


@pytest.fixture(scope="module")
def expected(model: Path, backend: str) -> list[Result]:
    """What each request gives alone in a fresh engine of one thread."""
    return [_run(_engine(model, backend, threads=1), [request])[0] for request in _requests()]


@pytest.mark.parametrize("name", WAYS)
def test_outputs_are_equal_to_the_bit(name: str, model: Path, backend: str, expected: list[Result]) -> None:
    _compare(WAYS[name], model, backend, expected)


@pytest.mark.parametrize("family", ["llama"], indirect=True)
@pytest.mark.parametrize("name", SMALL_POOLS)
def test_pools_too_small_for_all_leave_no_trace(
    name: str, model: Path, backend: str, expected: list[Result]
) -> None:
    _compare(SMALL_POOLS[name], model, backend, expected)


@pytest.mark.parametrize("family", ["gemma3"], indirect=True)
@pytest.mark.parametrize("name", WITH_WINDOWS)
def test_what_windows_leave_in_the_cache_leaves_no_trace(
    name: str, model: Path, backend: str, expected: list[Result]
) -> None:
    _compare(WITH_WINDOWS[name], model, backend, expected)


def test_a_prefix_that_all_running_requests_share_leaves_no_trace(tiny_model: Path, backend: str) -> None:
    requests = [(COMMON * 4 + prompt, params) for prompt, params in _requests()[::2]]
    expected = [_run(_engine(tiny_model, backend, threads=1), [request])[0] for request in requests]
    llm = _engine(tiny_model, backend, block_size=16)
    with _common_prefixes() as lengths:
        _run(llm, requests[:1])  # leaves the prefix in the cache
        assert _run(llm, requests) == expected
    assert max(lengths) >= 8, "eight blocks of 16 tokens are a chunk of the native backend"


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 64}, {"pipeline_depth": 2}], ids=str)
def test_prompts_that_arrive_together_are_shared_without_a_trace(
    settings: dict[str, Any], model: Path, backend: str
) -> None:
    prompt = COMMON * 4 + "who was first?"
    params = [msgspec.structs.replace(each, max_tokens=12) for _, each in _requests()[:4]]
    requests = [(prompt, each) for each in params] + [(COMMON * 4 + "and who else?", params[3])]
    expected = [_run(_engine(model, backend, threads=1), [request])[0] for request in requests]
    llm = _engine(model, backend, **settings)
    with _counted_tokens() as counts:
        assert _run(llm, requests) == expected
    num_alone = sum(len(llm.get_tokenizer().encode(each)) + 11 for each, _ in requests)
    assert sum(counts) < num_alone / 2


def test_n_answers_compute_their_prompt_once(tmp_path: Path, backend: str) -> None:
    model = write_tiny_model(tmp_path, context=2048)
    prompt = {"prompt_token_ids": [5 + number * 7 % 60 for number in range(2000)]}
    answers, totals = [], []
    for n in (1, 4):
        llm = _engine(model, backend)
        params = SamplingParams(n=n, temperature=0.9, seed=3, max_tokens=1, ignore_eos=True)
        with _counted_tokens() as counts:
            (output,) = llm.generate(prompt, params, use_tqdm=False)
        answers.append(output.outputs)
        totals.append(sum(counts))
    assert answers[1][0] == answers[0][0]
    assert totals == [2000, 2003]


def test_prefix_hits_happen_where_they_are_compared(tiny_model: Path, backend: str) -> None:
    llm = _engine(tiny_model, backend)
    prompt, params = _requests()[5]
    cold = llm.generate(prompt, params, use_tqdm=False)[0]
    warm = llm.generate(prompt, params, use_tqdm=False)[0]
    assert cold.num_cached_tokens == 0
    assert warm.num_cached_tokens >= 16


def test_the_requests_are_worth_comparing(expected: list[Result]) -> None:
    assert len({tuple(token_ids) for token_ids, _, _ in expected}) == NUM_REQUESTS
    assert all(len(set(token_ids)) > 2 for token_ids, _, _ in expected)


def _compare(way: Way, model: Path, backend: str, expected: list[Result]) -> None:
    llm = _engine(model, backend, **way.settings)
    drafts = Drafts(
        [llm.get_tokenizer().encode(r[0]) + e[0] for r, e in zip(_requests(), expected, strict=True)]
    )
    if way.drafts:
        install(llm, drafts)
    with _counted_preemptions() as preempted, _beginning_again(llm, way.begins_again):
        for _ in range(2 if way.warm else 1):
            if way.together:
                results = _run(llm, _requests())
            else:
                results = [_run(llm, [request])[0] for request in _requests()]
    assert results == expected
    assert bool(preempted) == way.preempts, f"{len(preempted)} preemptions"
    assert bool(drafts.num_accepted and drafts.num_rejected) == way.drafts
    llm.engine.client.core.check()


def _engine(model: Path, backend: str, **settings: Any) -> LLM:
    return LLM(str(model), backend=backend, **{"kv_cache_memory": "16MiB", "threads": 2, **settings})


def _run(llm: LLM, requests: Sequence[tuple[str, SamplingParams]]) -> list[Result]:
    prompts, params = zip(*requests, strict=True)
    outputs = llm.generate(list(prompts), list(params), use_tqdm=False)
    return [
        (
            answer.token_ids,
            [
                [(token_id, at.logprob, at.rank) for token_id, at in place.items()]
                for place in answer.logprobs
            ],
            answer.finish_reason,
        )
        for answer in (output.outputs[0] for output in outputs)
    ]


@contextmanager
def _counted_preemptions() -> Iterator[list[str]]:
    """The ids of requests that are preempted meanwhile."""
    preempted: list[str] = []
    original = RequestTable.preempt

    def counting(self: RequestTable, victim: Any) -> None:
        preempted.append(victim.request_id)
        original(self, victim)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RequestTable, "preempt", counting)
        yield preempted


@contextmanager
def _counted_tokens() -> Iterator[list[int]]:
    """How many tokens each step runs meanwhile."""
    counts: list[int] = []
    original = Scheduler.schedule

    def noting(self: Scheduler) -> PlannedStep:
        step = original(self)
        counts.append(step.output.total_num_scheduled_tokens)
        return step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "schedule", noting)
        yield counts


@contextmanager
def _beginning_again(llm: LLM, how: tuple[int, bool] | None) -> Iterator[None]:
    """Meanwhile, every so many steps all who run are preempted, and the prefix cache is emptied or not."""
    if how is None:
        yield
        return
    (interval, empties), core, num_steps = how, llm.engine.client.core, count(1)
    original = core.step

    def step() -> EngineCoreOutputs:
        if next(num_steps) % interval == 0:
            if empties:
                assert core.reset_prefix_cache(reset_running_requests=True)
            else:
                core.scheduler.table.preempt_all()
        return original()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "step", step)
        yield


@contextmanager
def _common_prefixes() -> Iterator[list[int]]:
    """How many blocks all running requests share, at each step meanwhile."""
    lengths: list[int] = []
    original = KVCacheManager.get_num_common_prefix_blocks

    def noting(self: KVCacheManager, *arguments: Any) -> list[int]:
        found = original(self, *arguments)
        lengths.extend(found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KVCacheManager, "get_num_common_prefix_blocks", noting)
        yield lengths
