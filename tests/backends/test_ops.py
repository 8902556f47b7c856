"""Every operation of the reference backend against its formula in float64."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.reference.attention import KVCache
from octavo.backends.reference.ops import ReferenceOps
from octavo.backends.reference.parameters import Parameters
from octavo.ops import AttentionLayer, Linear, Rope, RopeStyle
from octavo.types.batch import CommonAttentionMetadata
from octavo.types.kv import FullAttentionSpec, KVCacheConfig, KVCacheGroup
from octavo.weights.weight import Weight
from tests.models.tiny_llama import make_weight

# Values are about 1 and sums short: float32 is right to a few millionths.
TOLERANCE = 1e-5


def random_array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def make_ops(*weights: Weight) -> ReferenceOps:
    return ReferenceOps(Parameters(weights), KVCache(KVCacheConfig(1, ())), metadata=())


def assert_close(actual: np.ndarray, exact: np.ndarray) -> None:
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, exact, rtol=TOLERANCE, atol=TOLERANCE)


def test_embedding_takes_rows() -> None:
    array = random_array(10, 4)
    table = make_weight(array)
    assert np.array_equal(make_ops(table).embedding(np.array([3, 9, 3], np.int32), table), array[[3, 9, 3]])


def test_embedding_takes_rows_times_a_scale() -> None:
    array = random_array(10, 4)
    table = make_weight(array)
    assert np.array_equal(
        make_ops(table).embedding(np.array([3, 9], np.int32), table, 2.5), array[[3, 9]] * 2.5
    )


def test_rms_norm_divides_rows_by_their_root_mean_square() -> None:
    x, array = random_array(5, 24), random_array(24, seed=1)
    weight = make_weight(array)
    wide = x.astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 0.1) * array
    ops, residual = make_ops(weight), random_array(5, 24, seed=2)
    assert_close(ops.rms_norm(x, weight, 0.1), exact)
    assert_close(ops.rms_norm(x, weight, 0.1, residual), exact + residual)


def test_linear_stacks_weights_and_adds_biases_and_residual() -> None:
    x, first, second = random_array(5, 24), random_array(7, 24, seed=1), random_array(3, 24, seed=2)
    biases, residual = [random_array(7, seed=3), random_array(3, seed=4)], random_array(5, 10, seed=5)
    weights = tuple(make_weight(array) for array in (first, second))
    bias_weights = tuple(make_weight(array) for array in biases)
    ops = make_ops(*weights, *bias_weights)
    product = x.astype(np.float64) @ np.concatenate([first, second]).T
    assert_close(ops.linear(x, Linear(weights)), product)
    assert_close(ops.linear(x, Linear(weights, bias_weights)), product + np.concatenate(biases))
    assert_close(ops.linear(x, Linear(weights), residual=residual), product + residual)


def test_linear_leaves_its_residual_alone() -> None:
    weight, residual = make_weight(random_array(6, 4)), random_array(3, 6, seed=1)
    before = residual.copy()
    make_ops(weight).linear(random_array(3, 4), Linear((weight,)), residual=residual)
    assert np.array_equal(residual, before)


def test_split_heads_cuts_columns_in_order() -> None:
    x = random_array(5, 8 * 4)
    q, k, v = make_ops().split_heads(x, (4, 3, 1))
    assert np.array_equal(q, x[:, :16].reshape(5, 4, 4))
    assert np.array_equal(k, x[:, 16:28].reshape(5, 3, 4))
    assert np.array_equal(v, x[:, 28:].reshape(5, 1, 4))


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("num_pairs", [2, 4])
def test_rope_turns_pairs_as_complex_numbers(style: RopeStyle, num_pairs: int) -> None:
    frequencies = np.array([1.0, 0.3, 0.07, 0.01], np.float32)[:num_pairs]
    x, positions = random_array(6, 3, 8), np.array([0, 1, 5, 40, 41, 200])
    y = make_ops().rope(x, positions, Rope(frequencies, style, magnitude=1.5))
    turns = 1.5 * np.exp(1j * positions[:, None, None] * frequencies.astype(np.float64))
    for pair in range(num_pairs):
        a, b = (2 * pair, 2 * pair + 1) if style == "interleaved" else (pair, pair + num_pairs)
        turned = (x[..., a] + 1j * x[..., b]) * turns[..., pair]
        assert_close(y[..., a], turned.real)
        assert_close(y[..., b], turned.imag)
    assert np.array_equal(y[..., 2 * num_pairs :], x[..., 2 * num_pairs :])


def test_silu_and_mul_gates_the_second_half_by_the_first() -> None:
    x = random_array(5, 24) * 8
    gate, up = x[:, :12].astype(np.float64), x[:, 12:]
    assert_close(make_ops().silu_and_mul(x), gate / (1 + np.exp(-gate)) * up)


def test_gelu_tanh_and_mul_gates_the_second_half_by_the_first() -> None:
    x = random_array(5, 24) * 4
    gate, up = x[:, :12].astype(np.float64), x[:, 12:]
    exact = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
    assert_close(make_ops().gelu_tanh_and_mul(x), exact)


def test_gelu_of_extreme_numbers_is_zero_or_the_number() -> None:
    x = np.array([[-200.0, -1e30, 0.0, 1e30, 1.0, 1.0, 1.0, 1.0]], np.float32)
    assert np.array_equal(make_ops().gelu_tanh_and_mul(x), np.array([[0, 0, 0, 1e30]], np.float32))


def test_silu_of_very_negative_numbers_is_zero() -> None:
    x = np.array([[-200.0, -1e30, 1.0, 2.0]], np.float32)
    assert np.array_equal(make_ops().silu_and_mul(x), np.zeros((1, 2), np.float32))


# Two requests in blocks of 4: the first has 5 computed tokens in blocks 3 and 1 and runs 2 more; the second
# begins, with 3 tokens in block 2.
LAYER = AttentionLayer(index=7, num_heads=6, num_kv_heads=2, head_size=8, scale=0.3)
CONTEXTS = [6, 7, 1, 2, 3]


def make_attention() -> tuple[ReferenceOps, np.ndarray, np.ndarray]:
    """Operations on a cache that holds the first request's 5 tokens, whose K and V are given as well."""
    spec = FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=8, head_bytes=64)
    cache = KVCache(KVCacheConfig(4, (KVCacheGroup(spec, (7,)),)))
    k, v = random_array(5, 2, 8, seed=1), random_array(5, 2, 8, seed=2)
    cache.write(7, k, v, np.array([12, 13, 14, 15, 4]))
    metadata = CommonAttentionMetadata(
        query_start_loc=np.array([0, 2, 5], np.int32),
        seq_lens=np.array([7, 3], np.int32),
        block_table=np.array([[3, 1], [2, 0]], np.int32),
        slot_mapping=np.array([5, 6, 8, 9, 10]),
        num_common_prefix_blocks=0,
    )
    return ReferenceOps(Parameters(()), cache, (metadata,)), k, v


def exact_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """One token's q [6, 8] over k and v [context, 2, 8] in float64, head by head: [48]."""
    heads = []
    for head, query in enumerate(q.astype(np.float64)):
        weights = np.exp(k[:, head // 3] @ query * LAYER.scale)
        heads.append(weights / weights.sum() @ v[:, head // 3])
    return np.concatenate(heads)


def test_attention_sees_each_requests_own_context() -> None:
    ops, past_k, past_v = make_attention()
    q, k, v = random_array(5, 6, 8, seed=3), random_array(5, 2, 8, seed=4), random_array(5, 2, 8, seed=5)
    out = ops.attention(q, k, v, LAYER)
    all_k = [np.concatenate([past_k, k[:2]]), k[2:]]
    all_v = [np.concatenate([past_v, v[:2]]), v[2:]]
    for token, context in enumerate(CONTEXTS):
        request = int(token >= 2)
        exact = exact_attention(q[token], all_k[request][:context], all_v[request][:context])
        assert_close(out[token], exact)


def test_large_scores_do_not_overflow() -> None:
    ops, _, _ = make_attention()
    q, k, v = (random_array(5, heads, 8, seed=heads) for heads in (6, 2, 2))
    assert np.isfinite(ops.attention(q * 1e4, k * 1e4, v, LAYER)).all()


def test_slot_minus_one_is_written_nowhere() -> None:
    cache = KVCache(KVCacheConfig(2, (KVCacheGroup(FullAttentionSpec(4, 2, 8, 64), (0,)),)))
    k = random_array(2, 2, 8)
    cache.write(0, k, k, np.array([-1, 5]))
    stored, _ = cache.read(0, np.array([0, 1]), 0, 8)
    assert np.array_equal(stored[5], k[1])
    assert not np.delete(stored, 5, axis=0).any()


@pytest.mark.parametrize("size", [8, 24, 576, 577])
def test_operations_on_a_row_are_the_same_bits_in_any_company(size: int) -> None:
    x, array = random_array(40, 2 * size) * 4, random_array(2 * size, seed=1)
    weight = make_weight(array)
    rope = Rope(random_array(size // 2, seed=2), "half")
    positions = np.arange(0, 40_000, 1000)
    ops = make_ops(weight)
    whole = (
        ops.rms_norm(x, weight, 1e-5),
        ops.silu_and_mul(x),
        ops.rope(x.reshape(40, 2, size), positions, rope),
        ops.gelu_tanh_and_mul(x),
    )
    for start, stop in [(0, 1), (3, 4), (7, 10), (11, 28), (39, 40)]:
        rows = slice(start, stop)
        # A copy at an odd address: neither the place in an array nor the alignment may matter.
        part = np.empty((stop - start) * 2 * size + 1, np.float32)[1:].reshape(stop - start, 2 * size)
        part[:] = x[rows]
        assert np.array_equal(ops.rms_norm(part, weight, 1e-5), whole[0][rows])
        assert np.array_equal(ops.silu_and_mul(part), whole[1][rows])
        assert np.array_equal(ops.gelu_tanh_and_mul(part), whole[3][rows])
        heads = part.reshape(stop - start, 2, size)
        assert np.array_equal(ops.rope(heads, positions[rows], rope), whole[2][rows])
