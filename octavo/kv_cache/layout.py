"""Plans a `KVCacheConfig` from what each layer keeps and the memory there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from octavo.errors import CapacityError
from octavo.types.kv import KVCacheConfig, KVCacheGroup, KVCacheSpec

# Share of its pages that a kind of layers may leave unused, for the sake of fewer groups: each group costs
# every step some time.
MOST_UNUSED = 0.1


def group_layers(specs: Sequence[KVCacheSpec | None]) -> tuple[KVCacheGroup, ...]:
    """Put layers with equal specs into groups of one size, ordered by their first layers. `specs` is by
    layer; a layer without a spec keeps nothing and is in no group.

    A block id stands for one page in each layer of the largest group, so a smaller group leaves pages unused.
    The size is the largest with which no kind of layers leaves more than `MOST_UNUSED` of its pages unused.
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
    """The largest cache that fits `memory_bytes` for layers with these specs, or one of exactly `num_blocks`.

    A request runs up to `max_chunk` tokens in a step.
    """
    groups = group_layers(specs)
    if num_blocks is None:
        num_blocks = memory_bytes // KVCacheConfig(1, groups).total_bytes
    return KVCacheConfig(num_blocks, groups, max_chunk)


def check_fits(config: KVCacheConfig, max_model_len: int, size_setting: str) -> None:
    """Raise CapacityError unless a sequence of `max_model_len` tokens fits the cache. The error names the
    length that does fit, and `size_setting`, the setting that makes the cache larger.
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
