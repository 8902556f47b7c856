"""What layers keep, in the bytes of a backend."""

from __future__ import annotations

from typing import cast

import pytest

from octavo.backends.backend import Backend
from octavo.backends.reference.backend import ReferenceBackend
from octavo.config import EngineConfig, SchedulerConfig
from octavo.engine.build_core import build_core
from octavo.engine.cache_layout import WINDOWED_CHUNK, cache_spec, max_chunk
from octavo.errors import ConfigError, UnsupportedError
from octavo.kv_cache.layout import plan_kv_cache
from octavo.models.layer_cache import (
    ChunkedAttentionCache,
    FullAttentionCache,
    LatentCache,
    LayerCache,
    RecurrentState,
    SlidingWindowCache,
    cache_of_attention,
)
from octavo.ops import AttentionLayer
from octavo.sampling.sampler import Sampler
from octavo.types.kv import (
    UNBOUNDED,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    LatentAttentionSpec,
    RecurrentStateSpec,
    SlidingWindowSpec,
)
from tests.fakes import FakeExecutor

BLOCK_SIZE = 16


class Bytes:
    """A backend that takes 100 bytes, and 2 for each feature, for a key and a value."""

    def kv_head_bytes(self, head_size: int) -> int:
        return 100 + 2 * head_size


BACKEND = cast(Backend, Bytes())


@pytest.mark.parametrize(
    ("kept", "spec"),
    [
        (None, None),
        (FullAttentionCache(2, 64), FullAttentionSpec(BLOCK_SIZE, 2, 64, 228)),
        (SlidingWindowCache(2, 64, window=24), SlidingWindowSpec(BLOCK_SIZE, 2, 64, 228, 24)),
        (ChunkedAttentionCache(2, 64, chunk_size=24), ChunkedLocalAttentionSpec(BLOCK_SIZE, 2, 64, 228, 24)),
        (LatentCache(512, 64), LatentAttentionSpec(BLOCK_SIZE, 512, 64, 50 + 512 + 64)),
        (RecurrentState(((10, 3), (4, 8, 16))), RecurrentStateSpec(BLOCK_SIZE, 4 * (10 * 3 + 4 * 8 * 16))),
    ],
)
def test_each_kind_has_its_spec_in_the_backends_bytes(
    kept: LayerCache | None, spec: KVCacheSpec | None
) -> None:
    assert cache_spec(kept, BLOCK_SIZE, BACKEND) == spec


def test_attention_keeps_what_its_tokens_can_see() -> None:
    layer = AttentionLayer(0, num_heads=4, num_kv_heads=2, head_size=16, scale=1.0)
    windowed = AttentionLayer(1, num_heads=4, num_kv_heads=2, head_size=16, scale=1.0, window=24)
    assert cache_of_attention(layer) == FullAttentionCache(2, 16)
    assert cache_of_attention(windowed) == SlidingWindowCache(2, 16, 24)


FULL = FullAttentionCache(2, 16)
STATE = RecurrentState(((4, 3),))
LONGER = 2 * WINDOWED_CHUNK


@pytest.mark.parametrize(
    ("kept", "chunk"),
    [
        ([FULL, STATE, None], UNBOUNDED),
        ([FULL, SlidingWindowCache(2, 16, 24)], WINDOWED_CHUNK),
        ([SlidingWindowCache(2, 16, LONGER), SlidingWindowCache(2, 16, 24)], LONGER),
        ([ChunkedAttentionCache(2, 16, LONGER), None], LONGER),
    ],
)
def test_a_step_runs_no_longer_chunk_than_windows_allow(kept: list[LayerCache | None], chunk: int) -> None:
    specs = [cache_spec(each, BLOCK_SIZE, BACKEND) for each in kept]
    assert max_chunk(SchedulerConfig(max_num_batched_tokens=4096), specs) == chunk
    if chunk < UNBOUNDED:
        assert max_chunk(SchedulerConfig(max_num_batched_tokens=100), specs) == 100
    whole_prompts = SchedulerConfig(max_num_batched_tokens=4096, enable_chunked_prefill=False)
    assert max_chunk(whole_prompts, specs) == UNBOUNDED


@pytest.mark.parametrize("kept", [FULL, LatentCache(32, 16)])
def test_an_interval_of_retention_is_refused_where_every_block_is_kept(kept: LayerCache) -> None:
    kv_config = plan_kv_cache([cache_spec(kept, BLOCK_SIZE, BACKEND)], 0, UNBOUNDED, num_blocks=8)
    config = EngineConfig.from_settings(prefix_cache_retention_interval=0)
    with pytest.raises(ConfigError, match="no layer of this model has a sliding window"):
        build_core(config, kv_config, FakeExecutor(kv_config, config.scheduler))


@pytest.mark.parametrize(
    ("kept", "kind"), [(LatentCache(32, 16), "LatentAttentionSpec"), (STATE, "RecurrentStateSpec")]
)
def test_a_backend_names_the_layers_whose_kind_it_has_no_operations_for(kept: LayerCache, kind: str) -> None:
    backend = ReferenceBackend(Sampler(None))
    specs = [cache_spec(each, BLOCK_SIZE, backend) for each in (FULL, kept, None, kept)]
    with pytest.raises(UnsupportedError, match=f"layers 1, 3 need a KV cache of kind {kind}"):
        backend.allocate_kv_cache(plan_kv_cache(specs, 0, UNBOUNDED, num_blocks=8))
