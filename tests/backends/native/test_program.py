"""Programs as a whole: what they compute, whose memory it is in, and what a step must not be able to do."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from octavo.backends.native.kv_cache import KVCaches, head_bytes
from octavo.backends.native.library import load_library
from octavo.backends.native.program import Program, compile_program
from octavo.backends.native.recorder import record
from octavo.backends.native.weights import PackedWeights
from octavo.bench.weights import random_weight
from octavo.errors import UnsupportedError
from octavo.ops import AttentionLayer, Linear, Ops, Rope
from octavo.types.batch import CommonAttentionMetadata
from octavo.types.kv import FullAttentionSpec, KVCacheConfig, KVCacheGroup
from octavo.weights.formats import format_named
from octavo.weights.weight import Weight
from tests.models.tiny_llama import make_weight

SIZE = 32
NUM_BLOCKS = 4
LAYER = AttentionLayer(index=0, num_heads=4, num_kv_heads=2, head_size=16, scale=0.25)


def random_array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def doubling(device: Any, name: str = "x") -> Program:
    """x [T, 32] → 2 x."""
    layer = Linear((make_weight(2 * np.eye(SIZE, dtype=np.float32)),))
    return compile_program(
        device, lambda ops, token_ids, positions, **inputs: ops.linear(inputs[name], layer), {name: SIZE}
    )


# ------------------------------------------------------------ computing


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 15, 16, 17, 40])
def test_a_step_may_have_any_number_of_tokens(device: Any, num_tokens: int) -> None:
    x = random_array(num_tokens, SIZE)
    (y,) = doubling(device).run(num_tokens, x=x)
    assert y.shape == (num_tokens, SIZE)
    assert np.array_equal(y, 2 * x)


def test_gates_residuals_biases_and_norms_are_all_there(device: Any) -> None:
    gate, up, down = (
        random_array(*shape, seed=seed) for seed, shape in enumerate([(48, 32), (48, 32), (32, 48)])
    )
    bias, norm = random_array(32, seed=3), random_array(32, seed=4)
    gate_up = Linear((make_weight(gate), make_weight(up)))
    last = Linear((make_weight(down),), (make_weight(bias),))

    def function(ops: Ops, token_ids: Any, positions: Any, x: Any) -> Any:
        h = ops.silu_and_mul(ops.linear(ops.rms_norm(x, make_weight(norm), 1e-5), gate_up))
        return ops.linear(h, last, residual=x)

    x = random_array(5, SIZE, seed=5)
    (y,) = compile_program(device, function, {"x": SIZE}).run(5, x=x)
    h = x / np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=1, keepdims=True) + 1e-5) * norm
    z = h @ gate.T
    exact = (z / (1 + np.exp(-z)) * (h @ up.T)) @ down.T + bias + x
    # Sums of 48 products of numbers of about 10, in float32.
    np.testing.assert_allclose(y, exact, rtol=0, atol=1e-5 * np.abs(exact).max())


def test_a_matrix_used_twice_is_packed_once(device: Any) -> None:
    layer = Linear((make_weight(random_array(SIZE, SIZE)),))

    def twice(ops: Ops, token_ids: Any, positions: Any, x: Any) -> Any:
        return ops.linear(ops.linear(x, layer), layer)

    x = random_array(3, SIZE, seed=1)
    program = compile_program(device, twice, {"x": SIZE})
    once = compile_program(device, lambda ops, ids, positions, x: ops.linear(x, layer), {"x": SIZE})
    assert program.weights.num_bytes == once.weights.num_bytes
    assert np.array_equal(program.run(3, x=x)[0], once.run(3, x=once.run(3, x=x)[0])[0])


def test_several_outputs_and_parts_of_values_are_given_back(device: Any) -> None:
    layer = Linear((make_weight(random_array(48, SIZE)),))

    def function(ops: Ops, token_ids: Any, positions: Any, x: Any) -> Any:
        y = ops.linear(x, layer)
        return (y, *ops.split_heads(y, (1, 2)))

    y, left, right = compile_program(device, function, {"x": SIZE}).run(4, x=random_array(4, SIZE))
    assert np.array_equal(left, y[:, :16])
    assert np.array_equal(right, y[:, 16:])


# ------------------------------------------------------------ memory


def test_outputs_stay_as_they_are_while_they_are_held(device: Any) -> None:
    program, x = doubling(device), random_array(4, SIZE)
    held = [program.run(4, x=x * factor)[0] for factor in (1, 2, 3)]
    for factor, y in zip((1, 2, 3), held, strict=True):
        assert np.array_equal(y, 2 * x * factor)


def test_memory_of_outputs_that_are_gone_is_used_again(device: Any) -> None:
    program, x = doubling(device), random_array(4, SIZE)
    addresses = {program.run(4, x=x)[0].ctypes.data for _ in range(5)}
    assert len(addresses) == 1


def test_outputs_outlive_their_program_and_a_longer_step(device: Any) -> None:
    program, x = doubling(device), random_array(4, SIZE)
    (y,) = program.run(4, x=x)
    program.run(1000, x=random_array(1000, SIZE))
    del program
    gc.collect()
    assert np.array_equal(y, 2 * x)


# ------------------------------------------------------------ wrong inputs


@pytest.mark.parametrize(
    ("x", "complaint"),
    [
        (random_array(4, SIZE).astype(np.float64), "x is float64 .*contiguous numpy array of float32 with 2"),
        (random_array(SIZE, 4).T, "x is float32 of shape .*must be a contiguous"),
        (random_array(4 * SIZE), "x is float32 of shape .*with 2 dimensions"),
        (random_array(3, SIZE), r"x has shape \(3, 32\); it must be \(4, 32\)"),
        (random_array(4, SIZE + 1), r"x has shape \(4, 33\); it must be \(4, 32\)"),
        (None, "x is NoneType"),
    ],
)
def test_an_input_of_another_kind_is_refused_by_name(device: Any, x: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        doubling(device).run(4, x=x)


def test_token_ids_and_positions_are_checked_where_they_are_read(device: Any) -> None:
    table = make_weight(random_array(10, SIZE))
    rope = Rope(np.ones(8, np.float32), "half")

    def function(ops: Ops, token_ids: Any, positions: Any) -> Any:
        (heads,) = ops.split_heads(ops.embedding(token_ids, table), (2,))
        return ops.rope(heads, positions, rope)

    program = compile_program(device, function)
    ids, positions = np.zeros(3, np.int32), np.arange(3)
    assert program.run(3, token_ids=ids, positions=positions)[0].shape == (3, SIZE)
    with pytest.raises(ValueError, match=r"token_ids is int64"):
        program.run(3, token_ids=ids.astype(np.int64), positions=positions)
    with pytest.raises(ValueError, match=r"positions is NoneType"):
        program.run(3, token_ids=ids)
    with pytest.raises(ValueError, match=r"positions has 2 entries; it must have 3"):
        program.run(3, token_ids=ids, positions=positions[:2])


def attending(device: Any) -> Program:
    spec = FullAttentionSpec(16, LAYER.num_kv_heads, LAYER.head_size, head_bytes("bf16", LAYER.head_size))
    caches = KVCaches(KVCacheConfig(NUM_BLOCKS, (KVCacheGroup(spec, (0,)),)), "bf16")
    return compile_program(
        device,
        lambda ops, ids, positions, x: ops.attention(*ops.split_heads(x, (4, 2, 2)), LAYER),
        {"x": 128},
        caches,
    )


def metadata(**changes: Any) -> CommonAttentionMetadata:
    """Two requests: 2 tokens after 18, and 3 tokens at the start. Blocks of 16."""
    fields: dict[str, Any] = {
        "query_start_loc": np.array([0, 2, 5], np.int32),
        "seq_lens": np.array([20, 3], np.int32),
        "block_table": np.array([[1, 3], [2, 0]], np.int32),
        "slot_mapping": np.array([50, 51, 32, 33, 34]),
        "num_common_prefix_blocks": 0,
    }
    return CommonAttentionMetadata(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"query_start_loc": np.array([0, 2, 5])}, "query_start_loc is int64"),
        ({"query_start_loc": np.array([], np.int32)}, "query_start_loc is empty"),
        (
            {"query_start_loc": np.array([0, 2, 4], np.int32)},
            "query_start_loc runs from 0 to 4; .*0 to the 5",
        ),
        ({"query_start_loc": np.array([1, 2, 5], np.int32)}, "query_start_loc runs from 1"),
        ({"query_start_loc": np.array([0, 6, 5], np.int32)}, "query_start_loc falls at request 1"),
        ({"seq_lens": np.array([1, 3], np.int32)}, "seq_lens says 1 tokens for request 0, which has 2"),
        ({"seq_lens": np.array([20], np.int32)}, "seq_lens has 1 entries; it must have 2"),
        ({"seq_lens": np.array([33, 3], np.int32)}, "block_table has 2 columns, .* request 0 needs 3"),
        ({"seq_lens": np.array([20, 2**31 - 1], np.int32)}, "block_table has 2 columns, .* request 1 needs"),
        ({"block_table": np.array([[1, 4], [2, 0]], np.int32)}, "block_table holds 4 .* 0 up to 3"),
        ({"block_table": np.array([[1, 3], [-1, 0]], np.int32)}, "block_table holds -1 for request 1"),
        ({"block_table": np.array([[1, 3]], np.int32)}, "block_table has 1 rows; .* 2 requests"),
        ({"block_table": np.array([1, 3], np.int32)}, "block_table is int32 .* with 2 dimensions"),
        ({"slot_mapping": np.array([50, 51, 32, 33, 64])}, "slot_mapping holds 64; slots are 0 up to 63"),
        ({"slot_mapping": np.array([50, 51, 32, 33, -2])}, "slot_mapping holds -2"),
        ({"slot_mapping": np.array([50, 51])}, "slot_mapping has 2 entries; it must have 5"),
        ({"num_common_prefix_blocks": -1}, "num_common_prefix_blocks is -1; .* from 0 to the 2 columns"),
        ({"num_common_prefix_blocks": 3}, "num_common_prefix_blocks is 3; .* from 0 to the 2 columns"),
        ({"num_common_prefix_blocks": 0.5}, "num_common_prefix_blocks is 0.5; it must be a number"),
        (
            {"num_common_prefix_blocks": 1, "seq_lens": np.array([20, 19], np.int32)},
            "num_common_prefix_blocks is 1, but in block_table request 1 begins with other blocks",
        ),
    ],
)
def test_places_that_are_not_the_steps_are_refused_by_name(
    device: Any, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        attending(device).run(5, attention=[metadata(**changes)], x=random_array(5, 128))


def test_common_blocks_are_compared_as_far_as_all_requests_have_computed_them(device: Any) -> None:
    program, x = attending(device), random_array(5, 128)
    (y,) = program.run(5, attention=[metadata(num_common_prefix_blocks=1)], x=x)
    assert np.array_equal(y, program.run(5, attention=[metadata()], x=x)[0])


def test_blocks_past_a_requests_length_are_not_looked_at(device: Any) -> None:
    program, x = attending(device), random_array(5, 128)
    table = np.array([[1, 3], [2, 999]], np.int32)
    (y,) = program.run(5, attention=[metadata(block_table=table)], x=x)
    assert np.array_equal(y, program.run(5, attention=[metadata()], x=x)[0])


def test_a_group_that_is_missing_is_refused(device: Any) -> None:
    with pytest.raises(ValueError, match=r"attention has 0 groups; the program attends in 1"):
        attending(device).run(5, x=random_array(5, 128))


# ------------------------------------------------------------ wrong programs


@pytest.mark.parametrize(
    ("weight", "complaint"),
    [
        (make_weight(np.zeros((2, 4, 8)), "experts"), r"'experts' has shape \(2, 4, 8\); .*two dimensions"),
        (
            Weight("odd", (4, 256), format_named("Q8_K"), np.zeros((4, 292), np.uint8)),
            "'odd' is in format Q8_K, .*it has kernels for F32, F16",
        ),
        (
            Weight("wide", (4, 40_000), format_named("F32"), np.zeros((4, 160_000), np.uint8)),
            "'wide' has 40000 inputs; .*at most 32768",
        ),
    ],
)
def test_a_weight_without_a_kernel_is_named(device: Any, weight: Weight, complaint: str) -> None:
    with pytest.raises(UnsupportedError, match=complaint):
        compile_program(
            device,
            lambda ops, ids, positions, x: ops.linear(x, Linear((weight,))),
            {"x": weight.shape[-1]},
        )


@pytest.mark.parametrize("head_size", [8, 24, 272])
def test_heads_without_a_kernel_are_refused(device: Any, head_size: int) -> None:
    layer = AttentionLayer(index=7, num_heads=1, num_kv_heads=1, head_size=head_size, scale=1.0)
    with pytest.raises(
        UnsupportedError, match=rf"layer 7 has heads of {head_size} features; .*of 16 up to 256"
    ):
        compile_program(
            device,
            lambda ops, ids, positions, x: ops.attention(*ops.split_heads(x, (1, 1, 1)), layer),
            {"x": 3 * head_size},
        )


def bare_program(device: Any) -> tuple[Any, Callable[[int], tuple[int, int, int]]]:
    """A native program with a buffer for each width that is asked for."""
    native = load_library().Program(device)
    return native, lambda columns: (native.add_buffer(0, columns), 0, columns)


@pytest.mark.parametrize(
    ("add", "complaint"),
    [
        (
            lambda p, new: p.activate_and_mul(activation="silu", x=(5, 0, 32), out=new(16)),
            "x is in buffer 5; there are",
        ),
        (
            lambda p, new: p.activate_and_mul(activation="silu", x=(new(32)[0], 8, 32), out=new(16)),
            "x is 32 columns from 8 on",
        ),
        (
            lambda p, new: p.activate_and_mul(activation="silu", x=new(32), out=new(32)),
            "x has 32 columns; it must have 64",
        ),
        (
            lambda p, new: p.activate_and_mul(
                activation="silu", x=new(32), out=(p.add_input("y", 16), 0, 16)
            ),
            "out is in an input",
        ),
        (
            lambda p, new: p.activate_and_mul(activation="relu", x=new(32), out=new(16)),
            "activation is 'relu'; it must be none, silu or gelu_tanh",
        ),
        (
            lambda p, new: p.activate_and_mul(activation="none", x=new(32), out=new(16)),
            "activation is 'none'",
        ),
        (lambda p, new: p.add_buffer(8, 16), "offset is 8; it must be a multiple of 16"),
        (
            lambda p, new: p.rms_norm(
                x=new(32), weight=np.ones(24, np.float32), eps=0.1, residual=None, out=new(32)
            ),
            "x has 32 columns, which are no whole number of heads of 24",
        ),
        (
            lambda p, new: p.rms_norm(
                x=new(32), weight=np.ones(16, np.float32), eps=0.1, residual=new(16), out=new(32)
            ),
            "residual has 16 columns; it must have 32",
        ),
        (
            lambda p, new: p.rope(
                x=new(32), angles=new(16), style="half", head_size=16, rotary_size=18, out=new(32)
            ),
            "rotary_size is 18",
        ),
        (
            lambda p, new: p.rope(
                x=new(32), angles=new(16), style="spiral", head_size=16, rotary_size=16, out=new(32)
            ),
            "style is 'spiral'",
        ),
        (
            lambda p, new: p.embedding(
                format="F32", table=np.zeros((3, 60), np.uint8), k=16, scale=1.0, out=new(16)
            ),
            "table has 3 rows of 60 bytes; it must have some of 64",
        ),
        (
            lambda p, new: p.embedding(
                format="F33", table=np.zeros((3, 64), np.uint8), k=16, scale=1.0, out=new(16)
            ),
            "does not read the format 'F33'",
        ),
    ],
)
def test_instructions_that_do_not_fit_their_buffers_are_refused(
    device: Any, add: Callable[..., Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        add(*bare_program(device))


def test_an_instruction_added_after_a_run_has_the_scratch_memory_it_wants(device: Any) -> None:
    weight = random_weight("Q8_0", 32, 2048)
    layer = Linear((weight,))

    def function(ops: Ops, token_ids: Any, positions: Any, x: Any) -> Any:
        return ops.linear(x, layer)

    expected = compile_program(device, function, {"x": 2048})
    program, new = bare_program(device)
    x = random_array(64, 2048)
    source = (program.add_input("x", 2048), 0, 2048)
    program.run(64, None, None, [], [x])
    weights = PackedWeights(device, [record(function, {"x": 2048})])
    out = new(32)
    program.linear(
        x=source,
        norm_weight=None,
        norm_eps=0,
        parts=[weights.matrix(weight)],
        activation="none",
        residual=None,
        out=out,
    )
    program.add_output(out)
    (y,) = program.run(64, None, None, [], [x])
    np.testing.assert_array_equal(y, expected.run(64, x=x)[0])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"n": 33}, "3 panels of 2048 bytes.* do not fit into 4096"),
        ({"offset": 64}, "do not fit"),
        ({"offset": -64}, "do not fit"),
        ({"panel_stride": 1024}, "do not fit"),
        ({"n": 16, "panel_stride": 2052}, "both must be multiples of 64"),
        ({"k": 0}, "both must be positive"),
        ({"format": "Q8_0", "k": 48}, "a multiple of 32"),
        ({"bias": np.zeros(31, np.float32)}, "bias has 31 numbers; it must have 32"),
    ],
)
def test_matrices_outside_their_memory_are_refused(
    device: Any, changes: dict[str, Any], complaint: str
) -> None:
    library = load_library()
    whole = {"offset": 0, "format": "F32", "n": 32, "k": 32, "panel_stride": 2048, "bias": None}
    library.PackedMatrix(memory=library.Memory(4096), **whole)
    with pytest.raises(ValueError, match=complaint):
        library.PackedMatrix(memory=library.Memory(4096), **{**whole, **changes})
