"""Rows that a step brings in place of others: the native backend gives the bits of the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.native.buffers import plan_buffers
from octavo.backends.native.program import Program, compile_program
from octavo.backends.native.recorder import record
from octavo.backends.reference.attention import KVCache
from octavo.backends.reference.ops import ReferenceOps
from octavo.backends.reference.parameters import Parameters
from octavo.ops import Ops
from octavo.types.batch import RowsInput
from octavo.types.kv import KVCacheConfig
from tests.models.tiny_llama import make_weight

WIDTH = 20
TABLE = make_weight(np.random.default_rng(0).standard_normal((9, WIDTH), dtype=np.float32))
TOKEN_IDS = np.arange(40, dtype=np.int32) % 9


def embed(ops: Ops, token_ids: Any, positions: Any) -> Any:
    return ops.replace_rows(ops.embedding(token_ids, TABLE), "embeddings")


def rows(indices: list[int], width: int = WIDTH) -> RowsInput:
    values = np.random.default_rng(1).standard_normal((len(indices), width), dtype=np.float32)
    return RowsInput(np.array(indices, np.int64), values)


def run(program: Program, inputs: dict[str, RowsInput], num_tokens: int = len(TOKEN_IDS)) -> np.ndarray:
    (y,) = program.run(num_tokens, token_ids=TOKEN_IDS[:num_tokens], rows_inputs=inputs)
    return y


@pytest.mark.parametrize("indices", [None, [], [0], [39], [0, 7, 8, 20, 39], list(range(40))])
def test_the_backends_agree(devices: dict[int, Any], indices: list[int] | None) -> None:
    inputs = {} if indices is None else {"embeddings": rows(indices)}
    reference = ReferenceOps(Parameters([TABLE]), KVCache(KVCacheConfig(1, ())), (), inputs)
    expected = embed(reference, TOKEN_IDS, None)
    plain = TABLE.to_float32()[TOKEN_IDS]
    assert (expected != plain).any(axis=1).nonzero()[0].tolist() == (indices or [])
    for device in devices.values():
        assert np.array_equal(run(compile_program(device, embed), inputs), expected)


def test_nothing_of_one_step_is_left_in_the_next(device: Any) -> None:
    program = compile_program(device, embed)
    run(program, {"embeddings": rows([3, 4])})
    assert np.array_equal(run(program, {}), TABLE.to_float32()[TOKEN_IDS])
    assert run(program, {}, num_tokens=0).shape == (0, WIDTH)


def test_what_is_read_again_stays_as_it_was(device: Any) -> None:
    def function(ops: Ops, token_ids: Any, positions: Any) -> Any:
        x = ops.embedding(token_ids, TABLE)
        return ops.replace_rows(x, "embeddings"), x

    program = compile_program(device, function)
    given = rows([2, 30])
    replaced, x = program.run(40, token_ids=TOKEN_IDS, rows_inputs={"embeddings": given})
    assert np.array_equal(x, TABLE.to_float32()[TOKEN_IDS])
    assert np.array_equal(replaced[given.indices], given.values)


def test_inputs_of_a_program_are_only_read(device: Any) -> None:
    x = np.ones((40, WIDTH), np.float32)
    program = compile_program(
        device, lambda ops, ids, positions, x: ops.replace_rows(x, "rows"), {"x": WIDTH}
    )
    (y,) = program.run(40, x=x, rows_inputs={"rows": rows([5])})
    assert (x == 1).all()
    assert (y[5] != 1).any()


def test_a_value_that_nothing_reads_again_is_replaced_where_it_lies() -> None:
    recording = record(embed)
    plan = plan_buffers(recording)
    embedding, replaced = (operation.out.value for operation in recording.operations)
    assert plan.offsets[embedding] == plan.offsets[replaced]
    assert plan.num_columns == 32


@pytest.mark.parametrize(
    ("inputs", "complaint"),
    [
        ({"image": rows([0])}, r"rows_inputs names \['image'\]"),
        (
            {"embeddings": rows([0], WIDTH + 1)},
            r"embeddings.values has shape \(1, 21\); it must be \(1, 20\)",
        ),
        ({"embeddings": rows([3, 3])}, r"embeddings.indices holds 3 after 3; indices must rise"),
        ({"embeddings": rows([-1])}, r"embeddings.indices holds -1"),
        ({"embeddings": rows([5, 40])}, r"embeddings.indices holds 40 after 5; .*from 0 up to 39"),
        ({"embeddings": RowsInput(np.array([0]), np.zeros((1, WIDTH)))}, r"embeddings.values is float64"),
        ({"embeddings": RowsInput(np.array([0, 1]), np.zeros((1, WIDTH), np.float32))}, "embeddings.values"),
    ],
)
def test_rows_of_the_wrong_kind_are_refused_by_name(
    device: Any, inputs: dict[str, RowsInput], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        run(compile_program(device, embed), inputs)


def test_one_name_has_one_width(device: Any) -> None:
    def function(ops: Ops, token_ids: Any, positions: Any, x: Any) -> Any:
        return ops.replace_rows(ops.embedding(token_ids, TABLE), "rows"), ops.replace_rows(x, "rows")

    with pytest.raises(ValueError, match="rows named rows have 20 columns elsewhere; here they have 24"):
        compile_program(device, function, {"x": 24})
