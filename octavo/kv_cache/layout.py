"""From the layers' needs and the memory at hand to a `KVCacheConfig`."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.errors import CapacityError
from octavo.types.kv import FullAttentionSpec, KVCacheConfig, KVCacheGroup


def group_layers(specs: Sequence[FullAttentionSpec]) -> tuple[KVCacheGroup, ...]:
    """Put layers (by index) with equal specs into one group; groups in the order of their first layers."""
    layers: dict[FullAttentionSpec, list[int]] = {}
    for layer, spec in enumerate(specs):
        layers.setdefault(spec, []).append(layer)
    return tuple(KVCacheGroup(spec, tuple(members)) for spec, members in layers.items())


def plan_kv_cache(
    specs: Sequence[FullAttentionSpec], memory_bytes: int, num_blocks: int | None = None
) -> KVCacheConfig:
    """The cache that `memory_bytes` buy for layers with these specs, or one of exactly `num_blocks`."""
    groups = group_layers(specs)
    if num_blocks is None:
        num_blocks = memory_bytes // KVCacheConfig(1, groups).total_bytes
    return KVCacheConfig(num_blocks, groups)


def check_fits(config: KVCacheConfig, max_model_len: int) -> None:
    """Raise CapacityError, saying what does fit, unless a sequence of `max_model_len` tokens does."""
    if config.max_num_tokens >= max_model_len:
        return
    needed = KVCacheConfig(1 + config.num_blocks_for(max_model_len), config.groups)
    fitting = config.max_num_tokens
    other_way = f", or set max_model_len to at most {fitting} or to 'auto'" if fitting else ""
    raise CapacityError(
        f"the KV cache has {_size(config)}, but a sequence of max_model_len={max_model_len} tokens needs "
        f"{_size(needed)}; give it more memory (kv_cache_memory){other_way}"
    )


def _size(config: KVCacheConfig) -> str:
    return f"{config.num_blocks} blocks ({config.total_bytes / 2**20:.1f} MiB)"
