"""Memory that ran out: every backend says so in the same words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from octavo.errors import CapacityError
from octavo.models.model import Model
from octavo.types.kv import KVCacheConfig


@contextmanager
def room_for_weights(model: Model, num_bytes: int, form: str = "") -> Iterator[None]:
    """Turn a MemoryError into CapacityError: the weights take `num_bytes`, and `form` says as what."""
    try:
        yield
    except MemoryError as error:
        raise CapacityError(
            f"the weights of {model.spec.name} take {num_bytes / 2**20:.0f} MiB{form}, and memory ran out; "
            "take a smaller model"
        ) from error


@contextmanager
def room_for_kv_cache(config: KVCacheConfig) -> Iterator[None]:
    """Turn a MemoryError into CapacityError, for the KV cache."""
    try:
        yield
    except MemoryError as error:
        raise CapacityError(
            f"a KV cache of {config.num_blocks} blocks takes {config.total_bytes / 2**20:.0f} MiB, and "
            "memory ran out; lower kv_cache_memory or num_blocks_override"
        ) from error
