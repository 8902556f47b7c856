"""From the layers' needs and the memory at hand to a `KVCacheConfig`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from octavo.errors import CapacityError
from octavo.types.kv import KVCacheConfig, KVCacheGroup, KVCacheSpec

# Share of its pages that a kind of layers may leave unused so that there are fewer groups: each costs every
# step some time.
MOST_UNUSED = 0.1


def group_layers(specs: Sequence[KVCacheSpec | None]) -> tuple[KVCacheGroup, ...]:
    """Put layers (by index) with equal specs into groups of one size, in the order of their first layers.
    Layers without a spec keep nothing and are in no group.

    A block id is a page for as many layers as the largest group has, so a smaller group leaves pages unused.
    The size is the largest with which no kind of layers leaves more than `MOST_UNUSED` of its pages so.
    """
    kinds: dict[KVCacheSpec, list[int]] = {}
    for layer, spec in enumerate(specs):
        if spec is None:
            continue
        kinds.setdefault(spec, []).append(layer)
    size = max(map(len, kinds.values()), default=1)
    while any(_unused_share(len(layers), size) > MOST_UNUSED for layers in kinds.values()):
        size -= 1
    return tuple(
        KVCacheGroup(spec, tuple(layers[start : start + size]))
        for spec, layers in kinds.items()
        for start in range(0, len(layers), size)
    )


def plan_kv_cache(
    specs: Sequence[KVCacheSpec | None], memory_bytes: int, max_chunk: int, num_blocks: int | None = None
) -> KVCacheConfig:
    """The cache that `memory_bytes` buy for layers with these specs, or one of exactly `num_blocks`, when a
    request runs up to `max_chunk` tokens in a step.
    """
    groups = group_layers(specs)
    if num_blocks is None:
        num_blocks = memory_bytes // KVCacheConfig(1, groups).total_bytes
    return KVCacheConfig(num_blocks, groups, max_chunk)


def check_fits(config: KVCacheConfig, max_model_len: int, size_setting: str) -> None:
    """Raise CapacityError, saying what does fit, unless a sequence of `max_model_len` tokens does.

    `size_setting` is the setting that makes the cache larger.
    """
    if config.max_num_tokens >= max_model_len:
        return
    needed = replace(config, num_blocks=1 + config.num_blocks_for(max_model_len))
    fitting = config.max_num_tokens
    other_way = f", or set max_model_len to at most {fitting} or to 'auto'" if fitting else ""
    raise CapacityError(
        f"the KV cache has {_size(config)}, but a sequence of max_model_len={max_model_len} tokens needs "
        f"{_size(needed)}; give it more with {size_setting}{other_way}"
    )


def _size(config: KVCacheConfig) -> str:
    return f"{config.num_blocks} blocks ({config.total_bytes / 2**20:.1f} MiB)"


def _unused_share(num_layers: int, size: int) -> float:
    """Share of the pages that `num_layers` layers in groups of `size` leave unused."""
    num_unused = -num_layers % size
    return num_unused / (num_layers + num_unused)
