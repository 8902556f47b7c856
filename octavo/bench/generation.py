"""Runs requests of random tokens on an engine step by step, and times every step.

The time of a step is that of `LLMEngine.step`: scheduler, worker, backend, and the bookkeeping of the front
end. Tokens are not turned into text. Requests are checked and queued before the clock starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from octavo.engine.client import InprocClient
from octavo.engine.executor import InprocExecutor
from octavo.errors import CapacityError, ConfigError, OctavoError
from octavo.frontend.llm_engine import LLMEngine
from octavo.frontend.output_collector import OutputCollector
from octavo.types.kv import KVCacheConfig
from octavo.types.params import RequestOutputKind, SamplingParams

SEED = 0  # of the prompts
NUM_WARM_UP_TOKENS = 4  # output tokens after which every kernel has run and all memory has been touched
LEAST_MEASURED_S = 1.5  # medians over less time vary from one benchmark to the next


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of one shape that are queued together. Lengths are in tokens."""

    num_requests: int
    input_len: int  # of each prompt, after the prefix
    output_len: int
    prefix_len: int = 0  # shared by all prompts, and cached before the clock starts

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens of all requests, without the prefix."""
        return self.num_requests * (self.input_len + self.output_len)

    @property
    def context_len(self) -> int:
        """Tokens of each request at its end, with the prefix."""
        return self.prefix_len + self.input_len + self.output_len


@dataclass(frozen=True, slots=True)
class StepTime:
    """The times of one step, and the number of its tokens."""

    end_s: float  # since the first step began
    backend_s: float  # spent in the backend's methods
    num_tokens: int  # sampled


@dataclass(frozen=True, slots=True)
class Run:
    """The measurements of one run of a load."""

    load: Load
    steps: tuple[StepTime, ...]
    num_prefill_steps: int  # until every request had its first token

    @property
    def wall_s(self) -> float:
        """Seconds from the first step to the last token."""
        return self.steps[-1].end_s

    @property
    def time_to_first_token_s(self) -> float:
        """Seconds until every request had its first token."""
        return self.steps[self.num_prefill_steps - 1].end_s

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens per second."""
        return self.load.num_requests * self.load.input_len / self.time_to_first_token_s

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Output tokens per second after every request had its first token; None without later steps."""
        steps = self.steps[self.num_prefill_steps :]
        return sum(step.num_tokens for step in steps) / self._decode_s if steps else None

    @property
    def decode_step_s(self) -> float | None:
        """Seconds of a step after every request had its first token; None without later steps."""
        num_steps = len(self.steps) - self.num_prefill_steps
        return self._decode_s / num_steps if num_steps else None

    @property
    def total_tokens_per_s(self) -> float:
        """Prompt and output tokens per second of the whole run."""
        return self.load.num_tokens / self.wall_s

    @property
    def python_share(self) -> float | None:
        """Share of the decode steps' time outside the backend (scheduling, batches, outputs), or None."""
        steps = self.steps[self.num_prefill_steps :]
        return 1 - sum(step.backend_s for step in steps) / self._decode_s if steps else None

    @property
    def _decode_s(self) -> float:
        return self.wall_s - self.time_to_first_token_s


class TimedBackend:
    """Wraps a backend, and adds up the seconds spent in its methods."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        """The backend's attribute. Calls of a method are timed."""
        attribute = getattr(self.backend, name)
        return self._timed(attribute) if callable(attribute) else attribute

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            begun = perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                self.seconds += perf_counter() - begun

        return timed


class LoadRunner:
    """Runs loads on an engine in this process. It uses parts of the engine that no other caller may use."""

    def __init__(self, engine: LLMEngine) -> None:
        """Replace the engine's backend by a `TimedBackend`."""
        assert isinstance(engine.client, InprocClient)
        executor = engine.client.core.executor
        assert isinstance(executor, InprocExecutor)
        self._engine = engine
        self._scheduler = engine.client.core.scheduler
        runner: Any = executor.runner
        self.backend = runner.backend
        # All prompts of all runs differ, so that only the prefix is ever found in the cache.
        self._random = np.random.default_rng(SEED)
        self._clock = TimedBackend(self.backend)
        runner.backend = self._clock

    @property
    def kv_config(self) -> KVCacheConfig:
        """The engine's KV cache."""
        return self._scheduler.kv_cache.config

    def check_fits(self, load: Load) -> None:
        """Raise ConfigError or CapacityError unless the requests of `load` can all run at once."""
        most = self._scheduler.config.max_num_seqs
        if load.num_requests > most:
            raise ConfigError(
                f"max_num_seqs is {most}, but {load.num_requests} requests must run at once; raise it"
            )
        length = load.context_len
        block_size = max(group.spec.block_size for group in self.kv_config.groups)
        shared = self.kv_config.num_blocks_for(load.prefix_len // block_size * block_size)
        needed = shared + load.num_requests * (self.kv_config.num_blocks_for(length) - shared)
        available = self.kv_config.num_blocks - 1  # block 0 is the null block
        if needed > available:
            raise CapacityError(
                f"{load.num_requests} requests of {length} tokens take {needed} blocks of the KV cache, "
                f"which has {available}; raise kv_cache_memory"
            )

    def measure(self, load: Load, least: int, num_iters: int | None = None) -> list[Run]:
        """Run `load` once to warm up and then `num_iters` times. By default, run it until the runs have taken
        LEAST_MEASURED_S, and at least `least` times. Raises OctavoError if a request fails.
        """
        self.run(replace(load, output_len=min(load.output_len, NUM_WARM_UP_TOKENS)))
        runs: list[Run] = []
        while len(runs) < (num_iters or least) or (
            num_iters is None and sum(run.wall_s for run in runs) < LEAST_MEASURED_S
        ):
            runs.append(self.run(load))
        return runs

    def run(self, load: Load) -> Run:
        """Run `load` once. Raises OctavoError if a request fails."""
        prefix = np.random.default_rng(SEED).integers(0, self._engine.info.vocab_size, load.prefix_len)
        if load.prefix_len:
            self._run_requests(Load(1, 1, 1), prefix)
        return self._run_requests(load, prefix)

    def _run_requests(self, load: Load, prefix: np.ndarray) -> Run:
        ready: list[OutputCollector] = []  # collectors with outputs of the last step
        waiting = self._add_requests(load, prefix, ready)
        steps = []
        num_prefill_steps = 0
        begun = perf_counter()
        while self._engine.has_unfinished_requests():
            self._clock.seconds = 0.0
            num_prefill_steps += bool(waiting)
            self._engine.step()
            end_s = perf_counter() - begun
            num_tokens = 0
            outputs = [collector.get_nowait() for collector in ready]
            ready.clear()
            for output in filter(None, outputs):
                (answer,) = output.outputs
                if answer.finish_reason == "error":
                    raise OctavoError(f"a request of the benchmark failed: {answer.stop_reason}")
                num_tokens += len(answer.token_ids)
                waiting.discard(output.request_id)
            steps.append(StepTime(end_s, self._clock.seconds, num_tokens))
        return Run(load, tuple(steps), num_prefill_steps)

    def _add_requests(self, load: Load, prefix: np.ndarray, ready: list[OutputCollector]) -> set[str]:
        """Queue the requests. A collector that receives an output is appended to `ready`. Returns the ids."""
        params = SamplingParams(
            temperature=0.0,
            seed=SEED,
            max_tokens=load.output_len,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        shape = (load.num_requests, load.input_len)
        prompts = self._random.integers(0, self._engine.info.vocab_size, shape).tolist()
        ids = [f"request-{number}" for number in range(load.num_requests)]
        for request_id, prompt in zip(ids, prompts, strict=True):
            request = self._engine.input_processor.process_inputs([*prefix.tolist(), *prompt], params)
            self._engine.add_processed(request_id, request, ready.append)
        return set(ids)
