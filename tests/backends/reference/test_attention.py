"""What a layer may say about whom its tokens attend to, on the reference backend, against the formula in
float64.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from octavo.backends.reference.attention import KVCache
from octavo.backends.reference.ops import ReferenceOps
from octavo.backends.reference.parameters import Parameters
from octavo.ops import AttentionLayer
from octavo.types.batch import CommonAttentionMetadata
from octavo.types.kv import FullAttentionSpec, KVCacheConfig, KVCacheGroup
from tests.backends.attention_steps import exact_attention, random_tokens, run_steps
from tests.models.tiny_llama import make_weight

TOLERANCE = 1e-5  # values are about 1, sums short
LAYER = AttentionLayer(index=0, num_heads=4, num_kv_heads=2, head_size=8, scale=0.5)
BLOCK_SIZE, NUM_BLOCKS, NUM_TOKENS = 4, 8, 21
SINKS = np.array([0.5, -1.0, 2.0, 0.0], np.float32)
CHUNKED = [{0: 5}, {0: 1}, {0: 12}, {0: 3}]


def attend(layer: AttentionLayer, steps: list[dict[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """What `layer` gives, and what is exact. `layer.sinks`, if any, must be SINKS."""
    spec = FullAttentionSpec(BLOCK_SIZE, layer.num_kv_heads, layer.head_size, 2 * layer.head_size * 4)
    cache = KVCache(KVCacheConfig(NUM_BLOCKS, (KVCacheGroup(spec, (layer.index,)),)))
    parameters = Parameters(() if layer.sinks is None else (layer.sinks,))

    def step(q: Any, k: Any, v: Any, metadata: CommonAttentionMetadata) -> np.ndarray:
        return ReferenceOps(parameters, cache, (metadata,)).attention(q, k, v, layer)

    tokens = random_tokens(layer, NUM_TOKENS, 1, np.array([5, 2, 7, 1, 3, 6]))
    (out,) = run_steps(step, [tokens], steps, BLOCK_SIZE)
    return out, exact_attention(tokens, layer, None if layer.sinks is None else SINKS)


@pytest.mark.parametrize("steps", [[{0: NUM_TOKENS}], CHUNKED], ids=["whole", "chunks"])
@pytest.mark.parametrize(
    "changes",
    [
        {"window": 1},
        {"window": 6},
        {"window": 100},
        {"soft_cap": 1.5},
        {"sinks": make_weight(SINKS)},
        {"window": 6, "soft_cap": 1.5, "sinks": make_weight(SINKS)},
    ],
    ids=["only-itself", "window", "wide-window", "soft-cap", "sinks", "all-together"],
)
def test_tokens_attend_as_their_layer_says(changes: dict[str, Any], steps: list[dict[int, int]]) -> None:
    out, exact = attend(replace(LAYER, **changes), steps)
    np.testing.assert_allclose(out, exact, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("window", [None, 6])
def test_tokens_of_a_layer_that_is_not_causal_see_those_after_them(window: int | None) -> None:
    out, exact = attend(replace(LAYER, causal=False, window=window), [{0: NUM_TOKENS}])
    np.testing.assert_allclose(out, exact, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_sink_takes_all_where_it_is_far_above_the_scores() -> None:
    sinks = np.full(LAYER.num_heads, 1e4, np.float32)
    layer = replace(LAYER, sinks=make_weight(sinks))
    out, _ = attend(layer, [{0: NUM_TOKENS}])
    assert not out.any()
