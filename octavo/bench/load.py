"""`measure`: the work of `octavo bench latency` and `octavo bench throughput`."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from octavo.bench.generation import Load, LoadRunner
from octavo.bench.probes import probe_machine
from octavo.bench.report import Figures, Setup, summarize
from octavo.bench.work import ModelWork, count_work
from octavo.config import EngineConfig
from octavo.frontend.llm_engine import LLMEngine
from octavo.hub import resolve_model
from octavo.models.load import open_model
from octavo.types.kv import KVCacheConfig

if TYPE_CHECKING:
    from octavo.backends.native._native import Device


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The rules by which a load is run."""

    name: str
    at_once: bool  # whether all requests must run together, without waiting for a row or blocks
    least_iters: int  # applies if the user gives no number


LATENCY = Benchmark("latency", at_once=True, least_iters=3)
THROUGHPUT = Benchmark("throughput", at_once=False, least_iters=1)


def measure(
    benchmark: Benchmark, config: EngineConfig, load: Load, num_iters: int | None
) -> tuple[Setup, Figures]:
    """Load the model, probe the machine, run `load`, and measure a barrier before and after the runs.

    Raises what `LLMEngine.from_config` raises, RequestError for a load that cannot run, and CapacityError or
    ConfigError if its requests must run at once and cannot.
    """
    begun = perf_counter()
    engine = LLMEngine.from_config(config)
    load_s = perf_counter() - begun
    runner = LoadRunner(engine)
    if benchmark.at_once:
        runner.check_fits(load)
    work = _count_work(config, runner.kv_config)
    device: Device | None = getattr(runner.backend, "device", None)  # the reference backend has none
    probe = None if device is None else probe_machine(device)
    before_ns = _barrier_ns(device)
    runs = runner.measure(load, benchmark.least_iters, num_iters)
    setup = Setup(
        model=config.model.model,
        backend="reference" if device is None else "native",
        instruction_set=None if device is None else device.instruction_set,
        threads=None if device is None else device.num_threads,
        load_s=load_s,
        kv_cache_tokens=runner.kv_config.max_num_tokens,
        weight_bytes=work.weight_bytes,
        probe=probe,
        barrier_before_ns=before_ns,
        barrier_after_ns=_barrier_ns(device),
    )
    return setup, summarize(runs, work, probe)


def _count_work(config: EngineConfig, kv_config: KVCacheConfig) -> ModelWork:
    """The work of the model. Its file is opened again, because an engine does not keep the model."""
    model = open_model(resolve_model(config.model.model, revision=config.model.revision))
    return count_work(model, kv_config)


def _barrier_ns(device: Device | None) -> float | None:
    return None if device is None else device.barrier_ns()
