"""The composition root: from a configuration to an engine whose parts know only each other's protocols."""

from __future__ import annotations

import time
from dataclasses import replace

from octavo.backends.backend import Backend
from octavo.config import AUTO, CacheConfig, EngineConfig, SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.engine.deadlines import Deadlines, StepTimes
from octavo.engine.executor import InprocExecutor
from octavo.engine.features import FEATURES, Parts
from octavo.engine.observers import make_observers
from octavo.errors import CapacityError, ConfigError, UnsupportedError
from octavo.kv_cache.kv_cache_manager import KVCacheManager
from octavo.kv_cache.layout import check_fits, plan_kv_cache
from octavo.logs import get_logger
from octavo.machine.memory import kv_cache_bytes
from octavo.machine.processors import default_num_threads
from octavo.models.load import make_model
from octavo.models.model import Model
from octavo.models.spec import ModelSpec
from octavo.ops import AttentionLayer
from octavo.scheduler.scheduler import Scheduler
from octavo.types.kv import UNBOUNDED, FullAttentionSpec, KVCacheConfig, KVCacheSpec, SlidingWindowSpec
from octavo.types.observer import Observer, Observers
from octavo.types.outputs import EngineInfo
from octavo.weights.loader import ModelFiles
from octavo.worker.input_batch import InputBatch
from octavo.worker.model_runner import ModelRunner

logger = get_logger(__name__)

# Tokens of a prompt that a step runs at most where layers have windows (or as many as the largest one): what
# a window must hold grows with it, and speed, beyond a few hundred, does not.
WINDOWED_CHUNK = 512


def build_engine(
    config: EngineConfig, source: ModelFiles, num_token_ids: int | None
) -> tuple[EngineCore, EngineInfo]:
    """An engine for the model in `source`, ready to step, and what its front end must know.

    `num_token_ids` is how many ids the tokenizer knows; None = as many as the model. Raises ConfigError,
    CapacityError, WeightError or UnsupportedError, each saying what to change.
    """
    model = make_model(source)
    longest = _longest_sequence(config, model.spec)
    vocab_size = min(num_token_ids or model.spec.vocab_size, model.spec.vocab_size)
    backend = _load(config, model, vocab_size)
    kv_config = _plan_kv_cache(config, model.attention_layers, backend, longest)
    max_model_len = longest
    if config.model.max_model_len == AUTO:
        max_model_len = max(min(longest, kv_config.max_num_tokens), 1)
    check_fits(kv_config, max_model_len, config.cache.size_setting)
    logger.info(
        "the KV cache has %d blocks of %d tokens (%.0f MiB): room for %.1f sequences of %d tokens",
        kv_config.num_blocks,
        config.cache.block_size,
        kv_config.total_bytes / 2**20,
        (kv_config.num_blocks - 1) / kv_config.num_blocks_for(max_model_len),
        max_model_len,
    )
    backend.allocate_kv_cache(kv_config)

    parts = Parts(config, backend, vocab_size)
    features = [make() for make in FEATURES.values()]
    extensions = [feature.make_extension(parts) for feature in features if feature.make_extension]
    constraints = [feature.make_constraint(parts) for feature in features if feature.make_constraint]

    input_batch = _make_input_batch(config.scheduler.max_num_seqs, max_model_len, vocab_size, kv_config)
    runner = ModelRunner(backend, input_batch, extensions)
    executor = InprocExecutor(runner, threaded=config.scheduler.pipeline_depth > 1)
    step_times = StepTimes(time.monotonic)
    observers = Observers([step_times])
    kv_cache = _make_kv_cache(config.cache, kv_config, observers)
    deadlines = Deadlines(time.monotonic, step_times, config.scheduler.max_num_batched_tokens)
    scheduler = Scheduler(config.scheduler, kv_cache, max_model_len, constraints, observers)
    for observer in make_observers(config.observation, scheduler):
        observers.add(observer)
    info = EngineInfo(
        model_name=model.spec.name,
        vocab_size=vocab_size,
        max_model_len=scheduler.max_model_len,
        max_logprobs=config.model.max_logprobs,
        scheduling_policy=config.scheduler.scheduling_policy,
        features=frozenset(FEATURES),
    )
    return EngineCore(scheduler, executor, deadlines), info


def _load(config: EngineConfig, model: Model, num_token_ids: int) -> Backend:
    """The backend that was asked for, or the first that can run the model, with the model loaded."""
    if config.backend == "reference":
        return _load_reference(config, model, num_token_ids)
    try:
        return _load_native(config, model, num_token_ids)
    except UnsupportedError as error:
        if config.backend == "native":
            raise
        config.require_reference_dtype()
        logger.warning(
            "running on the slow reference backend, because %s (if that is wanted, set backend to reference)",
            error,
        )
        return _load_reference(config, model, num_token_ids)


def _load_native(config: EngineConfig, model: Model, num_token_ids: int) -> Backend:
    from octavo.backends.native.backend import NativeBackend
    from octavo.backends.native.library import make_device
    from octavo.backends.native.sampling import NativeSampler

    device = make_device(config.threads or default_num_threads())
    sampler = NativeSampler(device, num_token_ids, config.model.logprobs_mode)
    dtype = config.cache.kv_cache_dtype
    backend = NativeBackend(device, sampler, "bf16" if dtype == AUTO else dtype)
    backend.load_model(model)
    return backend


def _load_reference(config: EngineConfig, model: Model, num_token_ids: int) -> Backend:
    from octavo.backends.reference.backend import ReferenceBackend
    from octavo.sampling.sampler import Sampler

    backend = ReferenceBackend(Sampler(num_token_ids, config.model.logprobs_mode))
    backend.load_model(model)
    return backend


def _longest_sequence(config: EngineConfig, spec: ModelSpec) -> int:
    """The longest sequence wanted, memory permitting. Raises ConfigError for more than the model can."""
    wanted = config.model.max_model_len
    if wanted is None or wanted == AUTO:
        return spec.max_position_embeddings
    if wanted > spec.max_position_embeddings:
        raise ConfigError(
            f"max_model_len is {wanted}; {spec.name} was made for at most "
            f"{spec.max_position_embeddings} tokens"
        )
    return wanted


def _plan_kv_cache(
    config: EngineConfig, layers: tuple[AttentionLayer, ...], backend: Backend, longest: int
) -> KVCacheConfig:
    """The cache that was asked for, or of a share of the memory, but not larger than could ever be used."""
    cache = config.cache
    specs = [_cache_spec(layer, cache.block_size, backend) for layer in layers]
    max_chunk = _max_chunk(config.scheduler, layers)
    planned = plan_kv_cache(specs, kv_cache_bytes(cache), max_chunk, cache.num_blocks_override)
    if cache.kv_cache_memory is not None or cache.num_blocks_override is not None:
        return planned
    most = 1 + config.scheduler.max_num_seqs * planned.num_blocks_for(longest)
    return replace(planned, num_blocks=min(planned.num_blocks, most))


def _make_kv_cache(config: CacheConfig, kv_config: KVCacheConfig, observer: Observer) -> KVCacheManager:
    interval = config.prefix_cache_retention_interval
    if interval is not None and all(isinstance(group.spec, FullAttentionSpec) for group in kv_config.groups):
        raise ConfigError(
            f"prefix_cache_retention_interval is {interval}, but no layer of this model has a window that "
            "anything could slide out of; leave it out"
        )
    return KVCacheManager(kv_config, config.enable_prefix_caching, observer, interval)


def _max_chunk(config: SchedulerConfig, layers: tuple[AttentionLayer, ...]) -> int:
    """Most tokens of one request in a step."""
    windows = [layer.window for layer in layers if layer.window is not None]
    if not windows or not config.enable_chunked_prefill:
        return UNBOUNDED
    return min(max(*windows, WINDOWED_CHUNK), config.max_num_batched_tokens)


def _cache_spec(layer: AttentionLayer, block_size: int, backend: Backend) -> KVCacheSpec:
    heads = (block_size, layer.num_kv_heads, layer.head_size, backend.kv_head_bytes(layer.head_size))
    return FullAttentionSpec(*heads) if layer.window is None else SlidingWindowSpec(*heads, layer.window)


def _make_input_batch(
    num_rows: int, max_model_len: int, vocab_size: int, kv_config: KVCacheConfig
) -> InputBatch:
    try:
        return InputBatch(num_rows, max_model_len, vocab_size, kv_config)
    except MemoryError as error:
        raise CapacityError(
            f"max_num_seqs={num_rows} requests of max_model_len={max_model_len} tokens are more than memory "
            "can keep account of; lower one of them"
        ) from error
