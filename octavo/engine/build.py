"""The composition root: from a configuration to an engine whose parts know only each other's protocols."""

from __future__ import annotations

from pathlib import Path

from octavo.backends.backend import Backend
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.executor import InprocExecutor
from octavo.engine.features import FEATURES, Parts
from octavo.errors import ConfigError
from octavo.kv_cache.kv_cache_manager import KVCacheManager
from octavo.kv_cache.layout import check_fits, plan_kv_cache
from octavo.models.load import open_model
from octavo.models.spec import ModelSpec
from octavo.ops import AttentionLayer
from octavo.scheduler.scheduler import Scheduler
from octavo.types.kv import FullAttentionSpec, KVCacheConfig
from octavo.types.outputs import EngineInfo
from octavo.worker.input_batch import InputBatch
from octavo.worker.memory import kv_cache_bytes
from octavo.worker.model_runner import ModelRunner


def build_engine(
    config: EngineConfig, model_path: Path, num_token_ids: int | None
) -> tuple[EngineCore, EngineInfo]:
    """An engine for the model at `model_path`, ready to step, and what its front end must know.

    `num_token_ids` is how many ids the tokenizer knows; None = as many as the model. Raises ConfigError,
    CapacityError, WeightError or UnsupportedError, each saying what to change.
    """
    model = open_model(model_path)
    vocab_size = min(num_token_ids or model.spec.vocab_size, model.spec.vocab_size)
    backend = _make_backend(config, vocab_size)
    backend.load_model(model)
    kv_config = _plan_kv_cache(config, model.attention_layers, backend.kv_element_bytes)
    max_model_len = _choose_max_model_len(config, model.spec, kv_config)
    backend.allocate_kv_cache(kv_config)

    parts = Parts(config, backend, vocab_size)
    features = [make() for make in FEATURES.values()]
    extensions = [feature.make_extension(parts) for feature in features if feature.make_extension]
    constraints = [feature.make_constraint(parts) for feature in features if feature.make_constraint]

    input_batch = InputBatch(config.scheduler.max_num_seqs, max_model_len, vocab_size, kv_config)
    executor = InprocExecutor(ModelRunner(backend, input_batch, extensions))
    kv_cache = KVCacheManager(kv_config, config.cache.enable_prefix_caching)
    scheduler = Scheduler(config.scheduler, kv_cache, max_model_len, constraints)
    info = EngineInfo(
        model_name=model.spec.name,
        vocab_size=vocab_size,
        max_model_len=scheduler.max_model_len,
        max_logprobs=config.model.max_logprobs,
        scheduling_policy=config.scheduler.scheduling_policy,
        features=frozenset(FEATURES),
    )
    return EngineCore(scheduler, executor), info


def _make_backend(config: EngineConfig, num_token_ids: int) -> Backend:
    from octavo.backends.reference.backend import ReferenceBackend
    from octavo.sampling.sampler import Sampler

    return ReferenceBackend(Sampler(num_token_ids, config.model.logprobs_mode))


def _plan_kv_cache(
    config: EngineConfig, layers: tuple[AttentionLayer, ...], element_bytes: int
) -> KVCacheConfig:
    block_size = config.cache.block_size
    specs = [
        FullAttentionSpec(block_size, layer.num_kv_heads, layer.head_size, element_bytes) for layer in layers
    ]
    return plan_kv_cache(specs, kv_cache_bytes(config.cache), config.cache.num_blocks_override)


def _choose_max_model_len(config: EngineConfig, spec: ModelSpec, kv_config: KVCacheConfig) -> int:
    """The longest sequence to serve. Raises ConfigError or CapacityError for one that cannot be."""
    wanted, longest = config.model.max_model_len, spec.max_position_embeddings
    if wanted is None:
        wanted = longest
    if isinstance(wanted, str):
        wanted = max(min(longest, kv_config.max_num_tokens), 1)
    if wanted > longest:
        raise ConfigError(f"max_model_len is {wanted}; {spec.name} was made for at most {longest} tokens")
    check_fits(kv_config, wanted)
    _check_chunking(config, wanted)
    return wanted


def _check_chunking(config: EngineConfig, max_model_len: int) -> None:
    budget = config.scheduler.max_num_batched_tokens
    if not config.scheduler.enable_chunked_prefill and budget < max_model_len:
        raise ConfigError(
            f"max_num_batched_tokens is {budget}; without chunked prefill it must be at least max_model_len, "
            f"{max_model_len}, or a long prompt could never run"
        )
