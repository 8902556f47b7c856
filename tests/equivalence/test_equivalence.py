"""The same request gives the same bits, however the engine is set up and whatever else it is doing.

Every row below is a way of running the same sixteen requests. Each must give exactly the tokens and exactly
the log-probabilities (compared with ==) that each request gives alone, on the same backend, in a fresh engine
of one thread, its prompt in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.scheduler.scheduler import Scheduler
from tests.native import BACKENDS

NUM_REQUESTS = 16
COMMON = "In the beginning there was a prompt, and many began the same way: "
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
        )
        requests.append((prompt, params))
    return requests


@dataclass(frozen=True)
class Way:
    """A way of running the requests."""

    settings: dict[str, Any] = field(default_factory=dict)
    together: bool = True  # all in one `generate`; otherwise one after the other, in one engine
    warm: bool = False  # once before, so that the prefix cache has everything
    preempts: bool = False  # the pool is too small for all at once


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
    "together, preempted": Way({"num_blocks_override": 34, "block_size": 16}, preempts=True),
    "together, preempted, chunks of 7": Way(
        {"num_blocks_override": 34, "block_size": 16, "max_num_batched_tokens": 7}, preempts=True
    ),
    "together, preempted, no prefix cache": Way(
        {"num_blocks_override": 19, "enable_prefix_caching": False}, preempts=True
    ),
}


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def expected(tiny_model: Path, backend: str) -> list[Result]:
    """What each request gives alone in a fresh engine of one thread."""
    return [_run(_engine(tiny_model, backend, threads=1), [request])[0] for request in _requests()]


@pytest.mark.parametrize("name", WAYS)
def test_outputs_are_equal_to_the_bit(
    name: str, tiny_model: Path, backend: str, expected: list[Result]
) -> None:
    way = WAYS[name]
    llm = _engine(tiny_model, backend, **way.settings)
    with _counted_preemptions() as preempted:
        for _ in range(2 if way.warm else 1):
            if way.together:
                results = _run(llm, _requests())
            else:
                results = [_run(llm, [request])[0] for request in _requests()]
    assert results == expected
    assert bool(preempted) == way.preempts, f"{len(preempted)} preemptions"
    llm.engine.client.core.scheduler.check()


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
    original = Scheduler._preempt

    def counting(self: Scheduler, victim: Any) -> None:
        preempted.append(victim.request_id)
        original(self, victim)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "_preempt", counting)
        yield preempted
