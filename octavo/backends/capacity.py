"""The errors for a model or a KV cache that does not fit into memory. Every backend raises the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from octavo.errors import CapacityError
from octavo.models.model import Model
from octavo.types.kv import KVCacheConfig


@contextmanager
def weights_must_fit(model: Model, num_bytes: int, form: str = "") -> Iterator[None]:
    """Turn a MemoryError into a CapacityError. It says that the weights of `model` take `num_bytes`; `form`
    follows, and may say in which form.
    """
    try:
        yield
    except MemoryError as error:
        raise CapacityError(
            f"the weights of {model.spec.name} take {num_bytes / 2**20:.0f} MiB{form}, and memory ran out; "
            "take a smaller model"
        ) from error


@contextmanager
def kv_cache_must_fit(config: KVCacheConfig) -> Iterator[None]:
    """Turn a MemoryError into a CapacityError, which says how much memory the KV cache takes."""
    try:
        yield
    except MemoryError as error:
        raise CapacityError(
            f"a KV cache of {config.num_blocks} blocks takes {config.total_bytes / 2**20:.0f} MiB, and "
            "memory ran out; lower kv_cache_memory or num_blocks_override"
        ) from error
