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


def num_blocks_for(num_tokens: int, groups: Sequence[KVCacheGroup]) -> int:
    """Blocks that one sequence of `num_tokens` takes, and the null block."""
    return 1 + sum(-(-num_tokens // group.spec.block_size) for group in groups)


def max_num_tokens(num_blocks: int, groups: Sequence[KVCacheGroup]) -> int:
    """The longest sequence that fits `num_blocks` blocks, one of them the null block."""
    return (num_blocks - 1) // len(groups) * groups[0].spec.block_size


def plan_kv_cache(
    specs: Sequence[FullAttentionSpec], memory_bytes: int, max_model_len: int, num_blocks: int | None = None
) -> KVCacheConfig:
    """The cache that `memory_bytes` buy (or of exactly `num_blocks` blocks).

    Raises CapacityError, naming both numbers and the longest sequence that fits, when not even one sequence
    of `max_model_len` tokens does.
    """
    groups = group_layers(specs)
    block_bytes = sum(group.block_bytes for group in groups)
    affordable = memory_bytes // block_bytes if num_blocks is None else num_blocks
    needed = num_blocks_for(max_model_len, groups)
    if affordable < needed:
        fitting = max(max_num_tokens(affordable, groups), 0)
        have = f"{affordable * block_bytes / 2**20:.1f} MiB" if num_blocks is None else f"{affordable} blocks"
        need = f"{needed * block_bytes / 2**20:.1f} MiB" if num_blocks is None else f"{needed} blocks"
        raise CapacityError(
            f"the KV cache has {have}, but a sequence of max_model_len={max_model_len} tokens needs {need}; "
            f"give it more memory (kv_cache_memory), or set max_model_len to at most {fitting}, or to 'auto'"
        )
    return KVCacheConfig(affordable, groups)
