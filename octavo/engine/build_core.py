"""`build_core`: builds scheduler, KV cache, deadlines and observers around any executor.

`build_engine` gives it an executor that runs a model. A simulator or a test gives it one that computes
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from octavo.config import CacheConfig, EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.deadlines import Deadlines, StepTimes
from octavo.engine.observers import make_observers
from octavo.errors import ConfigError
from octavo.kv_cache.kv_cache_manager import KVCacheManager
from octavo.kv_cache.single_type_kv_cache_manager import MANAGERS
from octavo.scheduler.constraint import Constraint
from octavo.scheduler.scheduler import Scheduler
from octavo.types.kv import UNBOUNDED, KVCacheConfig
from octavo.types.observer import Observer, Observers
from octavo.types.protocols import Executor


def build_core(
    config: EngineConfig,
    kv_config: KVCacheConfig,
    executor: Executor,
    clock: Callable[[], float] = time.monotonic,
    *,
    max_model_len: int = UNBOUNDED,
    constraints: Sequence[Constraint] = (),
) -> EngineCore:
    """Build a core, ready to step, that runs its steps on `executor`.

    `clock` is monotonic, in seconds; deadlines and statistics use it. A sequence has at most `max_model_len`
    tokens, and no more than the cache can hold. `constraints` are the core halves of features. Raises
    ConfigError for settings that contradict each other or an endpoint that cannot be bound.
    """
    step_times = StepTimes(clock)
    observers = Observers([step_times])
    kv_cache = _make_kv_cache(config.cache, kv_config, observers)
    scheduler = Scheduler(config.scheduler, kv_cache, max_model_len, constraints, observers)
    for observer in make_observers(config.observation, scheduler, clock):
        observers.add(observer)
    deadlines = Deadlines(clock, step_times, config.scheduler.max_num_batched_tokens)
    return EngineCore(scheduler, executor, deadlines)


def _make_kv_cache(config: CacheConfig, kv_config: KVCacheConfig, observer: Observer) -> KVCacheManager:
    interval = config.prefix_cache_retention_interval
    keep_all = all(MANAGERS[type(group.spec)].keeps_all_blocks for group in kv_config.groups)
    if interval is not None and keep_all:
        raise ConfigError(
            f"prefix_cache_retention_interval is {interval}, but no layer of this model has a sliding "
            "window; leave it out"
        )
    return KVCacheManager(kv_config, config.enable_prefix_caching, observer, interval)
