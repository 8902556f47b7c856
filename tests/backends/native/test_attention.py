"""Attention over the paged cache: against the formula in float64, and against itself, bit for bit: what other
requests, chunks, blocks and threads there are leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest

from octavo.backends.native.kv_cache import KVType
from octavo.ops import AttentionLayer, Rope, RopeStyle
from octavo.types.batch import CommonAttentionMetadata
from tests.backends.attention_steps import (
    Tokens,
    exact_attention,
    random_steps,
    random_tokens,
    run_steps,
)
from tests.backends.native.attention_programs import KV_TYPES, NUM_BLOCKS, make_attend
from tests.models.tiny_llama import make_weight

LAYER = AttentionLayer(index=0, num_heads=6, num_kv_heads=2, head_size=32, scale=32**-0.5)
# Kernels differ by the rows that share K and V, by the head's vectors, and by what is masked.
LAYERS = {
    "plain": LAYER,
    "own-kv-heads": replace(LAYER, num_kv_heads=6, head_size=16),
    "one-kv-head": replace(LAYER, num_heads=7, num_kv_heads=1, head_size=80),
    "widest-heads": replace(LAYER, num_heads=4, head_size=256, scale=1 / 16),
    "window": replace(LAYER, window=70),
    "narrow-window": replace(LAYER, window=1),
    "soft-cap": replace(LAYER, soft_cap=1.5),
    "sinks": replace(LAYER, sinks=make_weight(np.linspace(-2, 3, 6, dtype=np.float32))),
    "all-together": replace(
        LAYER, window=150, soft_cap=3.0, sinks=make_weight(np.linspace(-2, 3, 6, dtype=np.float32))
    ),
}
# Contexts around the kernels' groups of 16 and chunks of 128.
LENGTHS = (1, 17, 128, 141, 300)


def stored(kv_type: KVType) -> Callable[[np.ndarray], np.ndarray]:
    """What a cache of this type makes of k or v [T, heads, head_size]."""
    if kv_type == "fp8_e4m3":

        def through_fp8(x: np.ndarray) -> np.ndarray:
            scale = np.abs(x).max(axis=-1, keepdims=True) / np.float32(448)
            return (x / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale

        return through_fp8
    return lambda x: x if kv_type == "f32" else x.astype(ml_dtypes.bfloat16).astype(np.float32)


def make_requests(layer: AttentionLayer, block_size: int, lengths: Sequence[int] = LENGTHS) -> list[Tokens]:
    """The same tokens for every block size, in blocks without an order. Block 0 is nobody's."""
    free = list(1 + np.random.default_rng(block_size).permutation(NUM_BLOCKS - 1))
    return [
        random_tokens(
            layer, length, seed, np.array([free.pop() for _ in range(-(-length // block_size))], np.int32)
        )
        for seed, length in enumerate(lengths)
    ]


def one_by_one(device: Any, layer: AttentionLayer, kv_type: KVType) -> list[np.ndarray]:
    """What every request of `make_requests` gets when each is run whole and alone."""
    steps = [{index: length} for index, length in enumerate(LENGTHS)]
    return run_steps(make_attend(device, layer, kv_type), make_requests(layer, 16), steps, 16)


def assert_close(actual: np.ndarray, exact: np.ndarray, kv_type: KVType, v: np.ndarray) -> None:
    """Sums are float32. Beside bf16 and fp8, queries and weights may be rounded to bf16, to 2^-9."""
    tolerance = 1e-5 if kv_type == "f32" else 2**-7
    np.testing.assert_allclose(actual, exact, rtol=0, atol=tolerance * np.abs(v).max())


# ------------------------------------------------------------ what it computes


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_tokens_attend_as_their_layer_says(device: Any, kv_type: KVType, layer: AttentionLayer) -> None:
    requests = make_requests(layer, 16)
    outputs = run_steps(make_attend(device, layer, kv_type), requests, random_steps(LENGTHS, 90, 1), 16)
    sinks = None if layer.sinks is None else layer.sinks.to_float32()
    for request, out in zip(requests, outputs, strict=True):
        assert_close(out, exact_attention(request, layer, sinks, stored(kv_type)), kv_type, request.v)


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_tokens_of_a_layer_that_is_not_causal_see_those_after_them(
    device: Any, kv_type: KVType, window: int | None
) -> None:
    layer = replace(LAYER, causal=False, window=window)
    requests = make_requests(layer, 16)
    whole = [dict(enumerate(LENGTHS))]
    outputs = run_steps(make_attend(device, layer, kv_type), requests, whole, 16)
    for request, out in zip(requests, outputs, strict=True):
        assert_close(out, exact_attention(request, layer, stored=stored(kv_type)), kv_type, request.v)


@pytest.mark.parametrize("num_pairs", [8, 12, 16])
@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_queries_and_keys_are_turned_on_their_way(device: Any, style: RopeStyle, num_pairs: int) -> None:
    frequencies = (100.0 ** -np.linspace(0, 1, num_pairs)).astype(np.float32)
    rope = Rope(frequencies, style, magnitude=1.25)
    (request,) = make_requests(LAYER, 16, [150])
    attend = make_attend(device, LAYER, "f32", rope=rope)
    (out,) = run_steps(attend, [request], [{0: 70}, {0: 1}, {0: 79}], 16)
    turned = replace(request, q=turn(request.q, rope), k=turn(request.k, rope))
    # float32 angles of up to 150 radians are right to 1e-5.
    np.testing.assert_allclose(out, exact_attention(turned, LAYER), rtol=0, atol=1e-4)


def turn(x: np.ndarray, rope: Rope) -> np.ndarray:
    """x [T, heads, head_size] at positions 0 to T - 1, its pairs turned as complex numbers, in float64."""
    size = rope.rotary_size
    firsts, seconds = slice(0, size, 2), slice(1, size, 2)
    if rope.style == "half":
        firsts, seconds = slice(0, size // 2), slice(size // 2, size)
    angles = np.arange(len(x))[:, None, None] * rope.inverse_frequencies.astype(np.float64)
    pairs = (x[..., firsts] + 1j * x[..., seconds]) * np.exp(1j * angles) * rope.magnitude
    y = x.astype(np.float64)
    y[..., firsts], y[..., seconds] = pairs.real, pairs.imag
    return y


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_large_scores_do_not_overflow(device: Any, kv_type: KVType) -> None:
    requests = make_requests(LAYER, 16)
    for request in requests:
        request.q *= 1e4
        request.k *= 1e4
    outputs = run_steps(make_attend(device, LAYER, kv_type), requests, [dict(enumerate(LENGTHS))], 16)
    assert all(np.isfinite(out).all() for out in outputs)


def test_fp8_keeps_what_is_no_number_and_bounds_what_is_too_large(device: Any) -> None:
    (request,) = make_requests(LAYER, 16, [1])
    request.v[0, :, :3] = np.nan, np.inf, -np.inf
    (out,) = run_steps(make_attend(device, LAYER, "fp8_e4m3"), [request], [{0: 1}], 16)
    assert np.isnan(out[..., 0]).all()
    for feature, bound in ((1, 2.0**127), (2, -(2.0**127))):
        np.testing.assert_allclose(out[..., feature], np.full_like(out[..., feature], bound), rtol=2**-7)


# ------------------------------------------------------------ what leaves no trace


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_company_chunks_and_blocks_leave_no_trace(
    devices: dict[int, Any], kv_type: KVType, layer: AttentionLayer
) -> None:
    expected = one_by_one(devices[1], layer, kv_type)
    for seed, (block_size, largest) in enumerate([(16, 8), (32, 130), (48, 300), (64, 40)]):
        requests = make_requests(layer, block_size)
        attend = make_attend(devices[1 + seed % 3], layer, kv_type, block_size)
        outputs = run_steps(attend, requests, random_steps(LENGTHS, largest, seed), block_size)
        for out, alone in zip(outputs, expected, strict=True):
            assert np.array_equal(out, alone)


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_a_long_context_is_divided_among_threads_without_a_trace(
    devices: dict[int, Any], kv_type: KVType
) -> None:
    layer = replace(LAYER, num_heads=2, num_kv_heads=1)
    outputs = [
        run_steps(make_attend(each, layer, kv_type), make_requests(layer, 16, [1201]), steps, 16)[0]
        for each in devices.values()
        for steps in ([{0: 1150}, *[{0: 1}] * 51], [{0: 1195}, {0: 6}])
    ]
    for out in outputs[1:]:
        assert np.array_equal(out[-6:], outputs[0][-6:])


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_threads_take_turns_at_many_requests_without_a_trace(
    devices: dict[int, Any], kv_type: KVType
) -> None:
    lengths = (*[20] * 24, 60, *[1, 33] * 6)  # 60 tokens are two tiles, none of them a large part of the work
    whole = dict(enumerate(lengths))
    alone = [{index: length} for index, length in whole.items()]
    together = [whole], [{index: length - length // 2 for index, length in whole.items()}]
    together[1].append({index: length // 2 for index, length in whole.items() if length > 1})
    for each in devices.values():
        first, *others = (
            run_steps(make_attend(each, LAYER, kv_type), make_requests(LAYER, 16, lengths), steps, 16)
            for steps in (alone, *together)
        )
        for other in others:
            for out, expected in zip(other, first, strict=True):
                assert np.array_equal(out, expected)


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_what_an_earlier_owner_left_in_a_block_leaves_no_trace(device: Any, kv_type: KVType) -> None:
    expected = one_by_one(device, LAYER, kv_type)
    attend = make_attend(device, LAYER, kv_type)
    spoiler = random_tokens(LAYER, 16 * NUM_BLOCKS, 0, np.arange(NUM_BLOCKS, dtype=np.int32))
    spoiler.k[:], spoiler.v[:] = np.nan, np.nan
    run_steps(attend, [spoiler], [{0: 16 * NUM_BLOCKS}], 16)
    for seed in range(3):
        outputs = run_steps(attend, make_requests(LAYER, 16), random_steps(LENGTHS, 50, seed), 16)
        for out, alone in zip(outputs, expected, strict=True):
            assert np.array_equal(out, alone)


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_blocks_behind_the_window_are_not_read(device: Any, kv_type: KVType) -> None:
    layer, block_size = replace(LAYER, window=70), 16
    expected = one_by_one(device, layer, kv_type)
    attend = make_attend(device, layer, kv_type)
    nobody = random_tokens(layer, block_size, 0, np.zeros(1, np.int32))  # the null block
    nobody.k[:], nobody.v[:] = np.nan, np.nan
    run_steps(attend, [nobody], [{0: block_size}], block_size)
    request = make_requests(layer, block_size)[-1]
    outputs = []
    while request.num_computed < len(request):
        request.block_ids[: max(0, request.num_computed - 69) // block_size] = 0
        count = min(25, len(request) - request.num_computed)
        outputs += run_steps(attend, [request], [{0: count}], block_size)
    assert np.array_equal(np.concatenate(outputs), expected[-1])


def test_slot_minus_one_is_written_nowhere(device: Any) -> None:
    attend = make_attend(device, LAYER, "f32")
    (request,) = make_requests(LAYER, 16, [5])

    def without_slots(
        q: np.ndarray, k: np.ndarray, v: np.ndarray, metadata: CommonAttentionMetadata
    ) -> np.ndarray:
        return attend(q, k + 1, v + 1, msgspec.structs.replace(metadata, slot_mapping=np.full(len(q), -1)))

    (out,) = run_steps(attend, [request], [{0: 5}], 16)
    request.num_computed = 0
    (again,) = run_steps(without_slots, [request], [{0: 5}], 16)
    assert np.array_equal(out, again)
