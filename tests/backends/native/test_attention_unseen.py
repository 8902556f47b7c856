"""Slots that a token does not attend to may hold anything, also what is no number, and no bit tells.

Behind a sequence's end and left of a window may lie what other requests, or layers of another kind, left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from octavo.backends.native.kv_cache import KVCaches, KVType
from octavo.ops import AttentionLayer
from octavo.types.batch import CommonAttentionMetadata
from tests.backends.attention_steps import Tokens, random_steps, random_tokens, run_steps
from tests.backends.native.attention_programs import KV_TYPES, attend_with, make_caches
from tests.models.tiny_llama import make_weight

LENGTHS = (1, 17, 33, 128, 141, 300)  # around the kernels' groups of 16 and chunks of 128
NUM_BLOCKS = 48
NUMBER_BYTES = {"f32": 4, "bf16": 2, "fp8_e4m3": 1}

LAYER = AttentionLayer(index=0, num_heads=6, num_kv_heads=2, head_size=32, scale=32**-0.5)
LAYERS = {
    "plain": LAYER,
    "own-kv-heads": replace(LAYER, num_kv_heads=6, head_size=16),
    "widest-heads": replace(LAYER, num_heads=4, head_size=256, scale=1 / 16),
    "window": replace(LAYER, window=70),
    "narrow-window": replace(LAYER, window=1),
    "all-together": replace(
        LAYER, window=150, soft_cap=3.0, sinks=make_weight(np.linspace(-2, 3, 6, dtype=np.float32))
    ),
}


def make_requests(layer: AttentionLayer, block_size: int) -> list[Tokens]:
    """In blocks without an order. Block 0 is nobody's."""
    free = list(1 + np.random.default_rng(block_size).permutation(NUM_BLOCKS - 1))
    return [
        random_tokens(
            layer, length, seed, np.array([free.pop() for _ in range(-(-length // block_size))], np.int32)
        )
        for seed, length in enumerate(LENGTHS)
    ]


def seen_slots(requests: Sequence[Tokens], window: int | None, block_size: int) -> np.ndarray:
    """[NUM_BLOCKS, block_size] bool: whether any later token attends to the token that is in a slot now."""
    seen = np.zeros((NUM_BLOCKS, block_size), bool)
    for request in requests:
        begin = 0 if window is None else max(0, request.num_computed + 1 - window)
        positions = np.arange(begin, request.num_computed)
        seen[request.block_ids[positions // block_size], positions % block_size] = True
    return seen


def spoil(caches: KVCaches, layer: AttentionLayer, kv_type: KVType, slots: np.ndarray) -> None:
    """Set all bits of K, V and their scales in `slots` [NUM_BLOCKS, block_size]: NaN in every type."""
    block_size, width = slots.shape[1], 1 if kv_type == "f32" else 2
    pages = caches.pages.bytes.reshape(NUM_BLOCKS, layer.num_kv_heads, -1)
    size = block_size * layer.head_size * NUMBER_BYTES[kv_type]
    head = (NUM_BLOCKS, layer.num_kv_heads)
    keys = pages[..., :size].reshape(*head, block_size // 16, layer.head_size // width, 16, -1)
    values = pages[..., size : 2 * size].reshape(*head, block_size // width, layer.head_size, width, -1)
    scales = pages[..., 2 * size :].reshape(*head, 2, block_size, -1)
    block, slot = slots.nonzero()
    keys[block, :, slot // 16, :, slot % 16] = 0xFF
    values[block, :, slot // width, :, slot % width] = 0xFF
    scales[block, :, :, slot] = 0xFF


def run_spoilt(
    device: Any,
    layer: AttentionLayer,
    kv_type: KVType,
    steps: Sequence[Mapping[int, int]],
    block_size: int,
) -> list[np.ndarray]:
    """What requests get where each step finds all slots spoilt that it should not look at."""
    requests = make_requests(layer, block_size)
    caches = make_caches(layer, kv_type, block_size, NUM_BLOCKS)
    attend = attend_with(device, layer, caches)

    def spoiling(
        q: np.ndarray, k: np.ndarray, v: np.ndarray, metadata: CommonAttentionMetadata
    ) -> np.ndarray:
        spoil(caches, layer, kv_type, ~seen_slots(requests, layer.window, block_size))
        return attend(q, k, v, metadata)

    return run_steps(spoiling, requests, steps, block_size)


def run_clean(device: Any, layer: AttentionLayer, kv_type: KVType) -> list[np.ndarray]:
    """What requests get, each whole, in blocks that nobody had before."""
    attend = attend_with(device, layer, make_caches(layer, kv_type, 16, NUM_BLOCKS))
    return run_steps(attend, make_requests(layer, 16), [dict(enumerate(LENGTHS))], 16)


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_slots_that_no_token_sees_do_not_change_the_output(
    devices: dict[int, Any], kv_type: KVType, layer: AttentionLayer
) -> None:
    expected = run_clean(devices[1], layer, kv_type)
    for threads, block_size, largest in ((1, 16, 8), (2, 48, 130), (3, 32, 40)):
        steps = random_steps(LENGTHS, largest, threads)
        outputs = run_spoilt(devices[threads], layer, kv_type, steps, block_size)
        for out, clean in zip(outputs, expected, strict=True):
            assert np.array_equal(out, clean)


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_what_lies_behind_the_end_leaves_no_trace_where_tokens_look_ahead(
    device: Any, kv_type: KVType, window: int | None
) -> None:
    layer = replace(LAYER, causal=False, window=window)
    outputs = run_spoilt(device, layer, kv_type, [dict(enumerate(LENGTHS))], 16)
    for out, clean in zip(outputs, run_clean(device, layer, kv_type), strict=True):
        assert np.array_equal(out, clean)
