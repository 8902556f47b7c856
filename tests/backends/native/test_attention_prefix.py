"""A prefix that all requests share, attended to in advance: no bit of any result may tell.

Which steps do so is for the kernel to choose; the requests here are many and short enough for it to pay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pytest

from octavo.backends.native.kv_cache import KVType
from octavo.ops import AttentionLayer
from octavo.types.batch import CommonAttentionMetadata
from tests.backends.attention_steps import Tokens, random_tokens, run_steps
from tests.backends.native.attention_programs import KV_TYPES, attend_with, make_caches
from tests.models.tiny_llama import make_weight

LAYER = AttentionLayer(index=0, num_heads=6, num_kv_heads=2, head_size=64, scale=1 / 8)
LAYERS = {
    "plain": LAYER,
    "own-kv-heads": replace(LAYER, num_kv_heads=6, head_size=16),
    "one-kv-head": replace(LAYER, num_heads=7, num_kv_heads=1, head_size=80),
    "widest-heads": replace(LAYER, num_heads=4, head_size=256, scale=1 / 16),
    "window": replace(LAYER, window=300),
    "soft-cap": replace(LAYER, soft_cap=1.5),
    "sinks": replace(LAYER, sinks=make_weight(np.linspace(-2, 3, 6, dtype=np.float32))),
}


@dataclass(frozen=True)
class Load:
    """Requests that share a prefix of whole blocks, not of whole chunks of 128 tokens, and their steps."""

    prefix: int = 400
    block_size: int = 16
    own: Sequence[int] = (*[3] * 14, 12, 37)  # tokens of each request behind the prefix
    # One token at a time, as when decoding; some run a few more, and one begins later.
    steps: Sequence[Mapping[int, int]] = (
        dict.fromkeys(range(15), 1),
        {**dict.fromkeys(range(15), 1), 15: 9},
        {**dict.fromkeys(range(14), 1), 14: 10, 15: 28},
    )
    num_computed: int = 400  # of the tokens of the prefix, in all requests, before the first of these steps


def make_requests(layer: AttentionLayer, load: Load) -> list[Tokens]:
    """Requests whose own blocks lie behind those of the prefix, which begin with block 1."""
    prefix, size = load.prefix, load.block_size
    common = 1 + np.arange(prefix // size)
    end = 1 + len(common)
    requests: list[Tokens] = []
    for seed, count in enumerate(load.own):
        ids = np.concatenate([common, end + np.arange(-(-count // size))]).astype(np.int32)
        end = int(ids[-1]) + 1
        request = random_tokens(layer, prefix + count, seed, ids)
        if requests:
            request.k[:prefix], request.v[:prefix] = requests[0].k[:prefix], requests[0].v[:prefix]
        requests.append(request)
    return requests


def run_load(
    device: Any, layer: AttentionLayer, kv_type: KVType, load: Load, num_common_blocks: int
) -> list[np.ndarray]:
    """What the tokens of the steps get when the backend is told of so many blocks that all have in common."""
    requests = make_requests(layer, load)
    num_blocks = int(requests[-1].block_ids[-1]) + 1
    attend = attend_with(device, layer, make_caches(layer, kv_type, load.block_size, num_blocks))
    run_steps(attend, requests[:1], [{0: load.prefix}], load.block_size)
    for request in requests:
        request.num_computed = load.num_computed

    def told(q: np.ndarray, k: np.ndarray, v: np.ndarray, metadata: CommonAttentionMetadata) -> np.ndarray:
        common = msgspec.structs.replace(metadata, num_common_prefix_blocks=num_common_blocks)
        return attend(q, k, v, common)

    return run_steps(told, requests, load.steps, load.block_size)


def assert_no_trace(device: Any, layer: AttentionLayer, kv_type: KVType, load: Load) -> None:
    """The prefix may be attended to in advance or not: the bits are the same."""
    told = run_load(device, layer, kv_type, load, load.prefix // load.block_size)
    untold = run_load(device, layer, kv_type, load, 0)
    for one, other in zip(told, untold, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_a_shared_prefix_leaves_no_trace(
    devices: dict[int, Any], kv_type: KVType, layer: AttentionLayer
) -> None:
    assert_no_trace(devices[1], layer, kv_type, Load())
    assert_no_trace(devices[2], layer, kv_type, Load(prefix=288, block_size=48, num_computed=288))
    assert_no_trace(devices[3], layer, kv_type, Load())


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_tokens_of_a_layer_that_is_not_causal_share_a_prefix(device: Any, kv_type: KVType) -> None:
    assert_no_trace(device, replace(LAYER, causal=False), kv_type, Load())


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_threads_take_turns_at_the_rows_of_very_many_requests(
    devices: dict[int, Any], kv_type: KVType
) -> None:
    own = [1 + i % 3 for i in range(120)]  # ten tiles of rows of one KV head: enough for one thread's turns
    rest = {i: count - 1 for i, count in enumerate(own) if count > 1}
    load = Load(own=own, steps=[dict.fromkeys(range(120), 1), rest])
    assert_no_trace(devices[3], LAYERS["one-kv-head"], kv_type, load)


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_a_prefix_is_shared_as_far_as_all_have_computed_it(device: Any, kv_type: KVType) -> None:
    load = Load(own=[10] * 16, steps=[dict.fromkeys(range(16), 6)], num_computed=380)
    assert_no_trace(device, LAYERS["own-kv-heads"], kv_type, load)
