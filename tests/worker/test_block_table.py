"""Block tables by row, and where tokens lie."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.worker.block_table import BlockTable


def slots(table: BlockTable, row: int, positions: list[int]) -> list[int]:
    return table.compute_slot_mapping(np.full(len(positions), row), np.array(positions)).tolist()


def test_a_prompt_is_written_to_consecutive_slots_of_its_block() -> None:
    table = BlockTable(num_rows=2, max_num_tokens=64, block_size=16)
    table.set_row(1, [65])
    assert slots(table, 1, [0, 1, 2, 3, 4]) == [1040, 1041, 1042, 1043, 1044]


def test_a_token_is_written_to_the_next_slot_of_the_last_block() -> None:
    table = BlockTable(num_rows=1, max_num_tokens=64, block_size=16)
    table.set_row(0, [65, 131])
    assert slots(table, 0, [18]) == [2098]


def test_slots_cross_from_block_to_block() -> None:
    table = BlockTable(num_rows=1, max_num_tokens=12, block_size=4)
    table.set_row(0, [9, 2, 5])
    assert slots(table, 0, [2, 3, 4, 5, 7, 8, 11]) == [38, 39, 8, 9, 11, 20, 23]


def test_slots_of_several_rows_come_in_the_order_of_the_tokens() -> None:
    table = BlockTable(num_rows=3, max_num_tokens=8, block_size=4)
    table.set_row(0, [1])
    table.set_row(2, [7, 3])
    mapping = table.compute_slot_mapping(np.array([2, 0, 2]), np.array([5, 3, 0]))
    assert mapping.tolist() == [13, 7, 28]
    assert mapping.dtype == np.int64


def test_slots_of_large_caches_do_not_overflow_32_bits() -> None:
    table = BlockTable(num_rows=1, max_num_tokens=16, block_size=16)
    table.set_row(0, [2**31 - 1])
    assert slots(table, 0, [15]) == [(2**31 - 1) * 16 + 15]


def test_appended_blocks_follow_those_that_are_there() -> None:
    table = BlockTable(num_rows=2, max_num_tokens=64, block_size=16)
    table.set_row(0, [5])
    table.append_row(0, [6, 7])
    table.append_row(0, [])
    assert table.get_rows(np.array([0])).tolist() == [[5, 6, 7]]


def test_tables_are_as_wide_as_the_longest_row_and_filled_with_the_null_block() -> None:
    table = BlockTable(num_rows=3, max_num_tokens=640, block_size=16)
    table.set_row(0, [5])
    table.set_row(1, [1, 2, 3])
    table.set_row(2, list(range(10, 40)))
    assert table.get_rows(np.array([1, 0])).tolist() == [[1, 2, 3], [5, 0, 0]]
    assert table.get_rows(np.array([], np.int32)).shape == (0, 0)


def test_taking_a_row_leaves_nothing_of_its_last_owner() -> None:
    table = BlockTable(num_rows=2, max_num_tokens=64, block_size=16)
    table.set_row(0, [1, 2, 3, 4])
    table.set_row(0, [9])
    assert table.block_ids[0].tolist() == [9, 0, 0, 0]
    table.append_row(0, [8])
    assert table.block_ids[0].tolist() == [9, 8, 0, 0]


def test_tables_handed_out_do_not_change_with_later_steps() -> None:
    table = BlockTable(num_rows=1, max_num_tokens=64, block_size=16)
    table.set_row(0, [1, 2])
    shown = table.get_rows(np.array([0]))
    table.set_row(0, [3, 4])
    assert shown.tolist() == [[1, 2]]


@pytest.mark.parametrize(("max_num_tokens", "width"), [(16, 1), (17, 2), (1, 1)])
def test_a_row_has_room_for_the_longest_sequence(max_num_tokens: int, width: int) -> None:
    table = BlockTable(num_rows=1, max_num_tokens=max_num_tokens, block_size=16)
    for block_id in range(1, width + 1):
        table.append_row(0, [block_id])
    assert slots(table, 0, [max_num_tokens - 1]) == [width * 16 + (max_num_tokens - 1) % 16]
