"""Computes the `KVCacheConfig` from the caches of a model's layers and the bytes that a backend needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from octavo.backends.backend import Backend
from octavo.config import EngineConfig, SchedulerConfig
from octavo.kv_cache.layout import plan_kv_cache
from octavo.machine.memory import kv_cache_bytes
from octavo.models.layer_cache import (
    ChunkedAttentionCache,
    FullAttentionCache,
    LatentCache,
    LayerCache,
    RecurrentState,
    SlidingWindowCache,
)
from octavo.models.model import Model
from octavo.types.kv import (
    UNBOUNDED,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    LatentAttentionSpec,
    RecurrentStateSpec,
    SlidingWindowSpec,
)

# The most tokens of a request in a step, where layers attend to windows or chunks that are no longer. The
# memory that such a layer needs grows with this number, and speed grows little beyond a few hundred tokens.
WINDOWED_CHUNK = 512

STATE_BYTES = 4  # bytes of one number in a recurrent state: float32


def plan_cache(config: EngineConfig, model: Model, backend: Backend, longest: int) -> KVCacheConfig:
    """The KV cache of `model` on `backend`: as large as configured, or as a share of the memory allows, but
    no larger than requests of `longest` tokens could use.
    """
    cache = config.cache
    specs = [cache_spec(kept, cache.block_size, backend) for kept in model.cache_specs()]
    chunk = max_chunk(config.scheduler, specs)
    planned = plan_kv_cache(specs, kv_cache_bytes(cache), chunk, cache.num_blocks_override)
    if cache.kv_cache_memory is not None or cache.num_blocks_override is not None:
        return planned
    most = 1 + config.scheduler.max_num_seqs * planned.num_blocks_for(longest)
    return replace(planned, num_blocks=min(planned.num_blocks, most))


def cache_spec(kept: LayerCache | None, block_size: int, backend: Backend) -> KVCacheSpec | None:
    """The spec, in `backend`'s bytes and blocks of `block_size` tokens, of a layer that keeps `kept`."""
    match kept:
        case None:
            return None
        case RecurrentState(shapes):
            return RecurrentStateSpec(block_size, STATE_BYTES * sum(map(math.prod, shapes)))
        case LatentCache(latent_size, rope_size):
            # The vector needs as much as a key of its size: half of a key and a value.
            token_bytes = backend.kv_head_bytes(latent_size + rope_size) // 2
            return LatentAttentionSpec(block_size, latent_size, rope_size, token_bytes)
    heads = (block_size, kept.num_kv_heads, kept.head_size, backend.kv_head_bytes(kept.head_size))
    match kept:
        case FullAttentionCache():
            return FullAttentionSpec(*heads)
        case SlidingWindowCache():
            return SlidingWindowSpec(*heads, kept.window)
        case ChunkedAttentionCache():
            return ChunkedLocalAttentionSpec(*heads, kept.chunk_size)


def max_chunk(config: SchedulerConfig, specs: Sequence[KVCacheSpec | None]) -> int:
    """The most tokens of one request in a step. It is bounded where layers keep only part of the context."""
    spans = [spec.window for spec in specs if isinstance(spec, SlidingWindowSpec)]
    spans += [spec.chunk_size for spec in specs if isinstance(spec, ChunkedLocalAttentionSpec)]
    if not spans or not config.enable_chunked_prefill:
        return UNBOUNDED
    return min(max(*spans, WINDOWED_CHUNK), config.max_num_batched_tokens)
