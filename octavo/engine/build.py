"""The composition root: builds an engine from a configuration. The parts know only each other's protocols."""

from __future__ import annotations

from pathlib import Path

from octavo.backends.backend import Backend
from octavo.config import AUTO, EngineConfig
from octavo.engine.build_core import build_core
from octavo.engine.cache_layout import plan_cache
from octavo.engine.core import EngineCore
from octavo.engine.executor import InprocExecutor
from octavo.errors import CapacityError, ConfigError, UnsupportedError
from octavo.features import EngineParts, load_features
from octavo.kv_cache.layout import check_fits
from octavo.logs import get_logger
from octavo.machine.processors import default_num_threads
from octavo.models.load import open_model
from octavo.models.model import Model
from octavo.models.spec import ModelSpec
from octavo.types.kv import KVCacheConfig
from octavo.types.outputs import EngineInfo
from octavo.worker.input_batch import InputBatch
from octavo.worker.model_runner import ModelRunner

logger = get_logger(__name__)


def build_engine(
    config: EngineConfig, model_path: Path, num_token_ids: int | None
) -> tuple[EngineCore, EngineInfo]:
    """Build an engine for the model at `model_path`. Returns the core, ready to step, and its properties.

    `num_token_ids` is the number of ids that the tokenizer has; None = as many as the model. Raises
    ConfigError, CapacityError, WeightError or UnsupportedError. The message says what to change.
    """
    model = open_model(model_path)
    vocab_size = min(num_token_ids or model.spec.vocab_size, model.spec.vocab_size)
    backend = _load(config, model, vocab_size)
    kv_config, max_model_len = _plan_memory(config, model, backend)
    backend.allocate_kv_cache(kv_config)
    num_rows = config.scheduler.max_num_seqs
    input_batch = _allocate_rows(backend, num_rows, max_model_len, vocab_size, kv_config)

    parts = EngineParts(config, backend, vocab_size, num_rows, max_model_len)
    features = load_features()
    extensions = [each.make_extension(parts) for each in features.values() if each.make_extension]
    constraints = [each.make_constraint(parts) for each in features.values() if each.make_constraint]
    runner = ModelRunner(backend, input_batch, extensions)
    executor = InprocExecutor(runner, threaded=config.scheduler.pipeline_depth > 1)
    core = build_core(config, kv_config, executor, max_model_len=max_model_len, constraints=constraints)
    info = EngineInfo(
        model_name=model.spec.name,
        vocab_size=vocab_size,
        max_model_len=core.scheduler.max_model_len,
        max_logprobs=config.model.max_logprobs,
        scheduling_policy=config.scheduler.scheduling_policy,
        features=frozenset(features),
    )
    return core, info


def _plan_memory(config: EngineConfig, model: Model, backend: Backend) -> tuple[KVCacheConfig, int]:
    """The layout of the KV cache, and the most tokens of a sequence (max_model_len). Raises ConfigError for a
    cache that cannot hold a sequence of the configured length.
    """
    longest = _longest_sequence(config, model.spec)
    kv_config = plan_cache(config, model, backend, longest)
    max_model_len = longest
    if config.model.max_model_len == AUTO:
        max_model_len = max(min(longest, kv_config.max_num_tokens), 1)
    check_fits(kv_config, max_model_len, config.cache.size_setting)
    logger.info(
        "the KV cache has %d blocks of %d tokens (%.0f MiB), enough for %.1f sequences of %d tokens",
        kv_config.num_blocks,
        config.cache.block_size,
        kv_config.total_bytes / 2**20,
        (kv_config.num_blocks - 1) / kv_config.num_blocks_for(max_model_len),
        max_model_len,
    )
    return kv_config, max_model_len


def _load(config: EngineConfig, model: Model, num_token_ids: int) -> Backend:
    """The configured backend, with the model loaded; for auto, native if it can run the model."""
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
    """The configured max_model_len, or else the model's limit. Raises ConfigError above that limit."""
    wanted = config.model.max_model_len
    if wanted is None or wanted == AUTO:
        return spec.max_position_embeddings
    if wanted > spec.max_position_embeddings:
        raise ConfigError(
            f"max_model_len is {wanted}; {spec.name} was made for at most "
            f"{spec.max_position_embeddings} tokens"
        )
    return wanted


def _allocate_rows(
    backend: Backend, num_rows: int, max_model_len: int, vocab_size: int, kv_config: KVCacheConfig
) -> InputBatch:
    try:
        backend.allocate_rows(num_rows, max_model_len)
        return InputBatch(num_rows, max_model_len, vocab_size, kv_config)
    except MemoryError as error:
        raise CapacityError(
            f"max_num_seqs={num_rows} requests of max_model_len={max_model_len} tokens need more memory "
            "than there is; lower one of them"
        ) from error
