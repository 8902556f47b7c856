"""Block tables by group and row, and where tokens lie."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.worker.block_tables import BlockTables


def slots(tables: BlockTables, row: int, positions: list[int]) -> list[int]:
    (mapping,) = tables.compute_slot_mapping(np.full(len(positions), row), np.array(positions))
    return mapping.tolist()


def test_a_prompt_is_written_to_consecutive_slots_of_its_block() -> None:
    tables = BlockTables(num_groups=1, num_rows=2, max_num_tokens=64, block_size=16)
    tables.set_row(1, ([65],))
    assert slots(tables, 1, [0, 1, 2, 3, 4]) == [1040, 1041, 1042, 1043, 1044]


def test_a_token_is_written_to_the_next_slot_of_the_last_block() -> None:
    tables = BlockTables(num_groups=1, num_rows=1, max_num_tokens=64, block_size=16)
    tables.set_row(0, ([65, 131],))
    assert slots(tables, 0, [18]) == [2098]


def test_slots_cross_from_block_to_block() -> None:
    tables = BlockTables(num_groups=1, num_rows=1, max_num_tokens=12, block_size=4)
    tables.set_row(0, ([9, 2, 5],))
    assert slots(tables, 0, [2, 3, 4, 5, 7, 8, 11]) == [38, 39, 8, 9, 11, 20, 23]


def test_slots_of_several_rows_come_in_the_order_of_the_tokens() -> None:
    tables = BlockTables(num_groups=1, num_rows=3, max_num_tokens=8, block_size=4)
    tables.set_row(0, ([1],))
    tables.set_row(2, ([7, 3],))
    (mapping,) = tables.compute_slot_mapping(np.array([2, 0, 2]), np.array([5, 3, 0]))
    assert mapping.tolist() == [13, 7, 28]
    assert mapping.dtype == np.int64


def test_slots_of_large_caches_do_not_overflow_32_bits() -> None:
    tables = BlockTables(num_groups=1, num_rows=1, max_num_tokens=16, block_size=16)
    tables.set_row(0, ([2**31 - 1],))
    assert slots(tables, 0, [15]) == [(2**31 - 1) * 16 + 15]


def test_appended_blocks_follow_those_that_are_there() -> None:
    tables = BlockTables(num_groups=1, num_rows=2, max_num_tokens=64, block_size=16)
    tables.set_row(0, ([5],))
    tables.append_row(0, ([6, 7],))
    tables.append_row(0, ([],))
    assert tables.get_rows(np.array([0])).tolist() == [[[5, 6, 7]]]


def test_tables_are_as_wide_as_the_longest_row_and_filled_with_the_null_block() -> None:
    tables = BlockTables(num_groups=1, num_rows=3, max_num_tokens=640, block_size=16)
    tables.set_row(0, ([5],))
    tables.set_row(1, ([1, 2, 3],))
    tables.set_row(2, (list(range(10, 40)),))
    assert tables.get_rows(np.array([1, 0])).tolist() == [[[1, 2, 3], [5, 0, 0]]]
    assert tables.get_rows(np.array([], np.int32)).shape == (1, 0, 0)


def test_taking_a_row_leaves_nothing_of_its_last_owner() -> None:
    tables = BlockTables(num_groups=1, num_rows=2, max_num_tokens=64, block_size=16)
    tables.set_row(0, ([1, 2, 3, 4],))
    tables.set_row(0, ([9],))
    assert tables.block_ids[0, 0].tolist() == [9, 0, 0, 0]
    tables.append_row(0, ([8],))
    assert tables.block_ids[0, 0].tolist() == [9, 8, 0, 0]


def test_tables_handed_out_do_not_change_with_later_steps() -> None:
    tables = BlockTables(num_groups=1, num_rows=1, max_num_tokens=64, block_size=16)
    tables.set_row(0, ([1, 2],))
    shown = tables.get_rows(np.array([0]))
    tables.set_row(0, ([3, 4],))
    assert shown.tolist() == [[[1, 2]]]


@pytest.mark.parametrize(("max_num_tokens", "width"), [(16, 1), (17, 2), (1, 1)])
def test_a_row_can_hold_the_longest_sequence(max_num_tokens: int, width: int) -> None:
    tables = BlockTables(num_groups=1, num_rows=1, max_num_tokens=max_num_tokens, block_size=16)
    for block_id in range(1, width + 1):
        tables.append_row(0, ([block_id],))
    assert slots(tables, 0, [max_num_tokens - 1]) == [width * 16 + (max_num_tokens - 1) % 16]


def test_groups_hold_blocks_of_their_own_and_as_many_as_they_get() -> None:
    tables = BlockTables(num_groups=3, num_rows=4, max_num_tokens=64, block_size=16)
    tables.set_row(1, ([1, 2], [0, 7], [5]))
    tables.set_row(3, ([3], [], [6]))
    tables.append_row(1, ([4], [8], []))
    found = tables.get_rows(np.array([3, 1]))
    assert found.tolist() == [[[3, 0, 0], [1, 2, 4]], [[0, 0, 0], [0, 7, 8]], [[6, 0, 0], [5, 0, 0]]]
    assert all(table.flags.c_contiguous for table in found)  # as native kernels want them
    mapping = tables.compute_slot_mapping(np.array([1, 3, 1]), np.array([17, 3, 31]))
    assert mapping.tolist() == [[33, 51, 47], [113, 3, 127], [1, 99, 15]]
    tables.set_row(1, ([9], [9], [9]))
    assert tables.block_ids[:, 1].tolist() == [[9, 0, 0, 0]] * 3
    assert tables.block_ids[:, 3].tolist() == [[3, 0, 0, 0], [0] * 4, [6, 0, 0, 0]]


@pytest.mark.parametrize("block_ids", [([1],), ([1], [2], [3])])
def test_a_row_gets_blocks_for_every_group(block_ids: tuple[list[int], ...]) -> None:
    with pytest.raises(ValueError, match="zip"):
        BlockTables(num_groups=2, num_rows=1, max_num_tokens=64, block_size=16).set_row(0, block_ids)
