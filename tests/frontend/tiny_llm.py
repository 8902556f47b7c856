"""An `LLM` of the tiny model, and what its core looks like from outside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo import LLM, SamplingParams
from octavo.scheduler.scheduler import Scheduler
from octavo.types.outputs import RequestOutput

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def make_llm(path: Path, **settings: Any) -> LLM:
    return LLM(str(path), **{"kv_cache_memory": "8MiB", "block_size": 16, "max_num_seqs": 8, **settings})


def core_of(llm: LLM) -> Scheduler:
    return llm.engine.client.core.scheduler


def assert_idle(llm: LLM) -> None:
    assert not llm.engine.has_unfinished_requests()
    assert not core_of(llm).has_unfinished_requests()
    assert core_of(llm).kv_cache.usage == 0
    core_of(llm).check()


def tokens_of(output: RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


def at_once(llm: LLM, context: Sequence[int], params: SamplingParams) -> list[int]:
    """What `llm` generates after `context`, without any of it in the cache."""
    llm.reset_prefix_cache()
    (output,) = llm.generate(list(context), params, use_tqdm=False)
    return tokens_of(output)
