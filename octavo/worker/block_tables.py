"""`BlockTables`: the block tables of all rows of the worker, in every KV cache group."""

from __future__ import annotations

import numpy as np

from octavo.types.steps import BlockIds


class BlockTables:
    """Block ids by group and row. A row is overwritten when a request is admitted to it, and else only grows.

    All groups are in one array, so that a step gathers them together: many groups cost little more than one.
    The id of a block that has slid out of a group's window stays in the table, but is not read any more.
    """

    def __init__(self, num_groups: int, num_rows: int, max_num_tokens: int, block_size: int) -> None:
        self.block_size = block_size
        max_num_blocks = -(-max_num_tokens // block_size)
        # [G, rows, most blocks]; 0 past the end. The system zeroes a page on first touch, so only rows that
        # were used take memory.
        self.block_ids = np.zeros((num_groups, num_rows, max_num_blocks), np.int32)
        self.num_blocks = np.zeros((num_groups, num_rows), np.int64)  # [G, rows]
        self._groups = np.arange(num_groups)[:, None]  # [G, 1]: broadcasts against an index of rows

    def set_row(self, row: int, block_ids: BlockIds) -> None:
        """Give `row` these blocks and no others."""
        self.block_ids[:, row, : self.num_blocks[:, row].max()] = 0
        self.num_blocks[:, row] = 0
        self.append_row(row, block_ids)

    def append_row(self, row: int, block_ids: BlockIds) -> None:
        """Append blocks to `row`. The number of new blocks may differ between groups."""
        for group, new_ids in zip(range(len(self.block_ids)), block_ids, strict=True):
            start = self.num_blocks[group, row]
            stop = start + len(new_ids)
            assert stop <= self.block_ids.shape[2], f"row {row} cannot hold {len(new_ids)} more blocks"
            self.block_ids[group, row, start:stop] = new_ids
            self.num_blocks[group, row] = stop

    def get_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return the tables of `rows` [n] as [G, n, B] int32. B is the most blocks of any of them."""
        num_blocks = self.num_blocks.take(rows, axis=1).max(initial=0)
        return self.block_ids[self._groups, rows, :num_blocks]

    def compute_slot_mapping(self, token_rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return the slots of the tokens at `positions` [T] of `token_rows` [T]: [G, T] int64."""
        block_ids = self.block_ids[self._groups, token_rows, positions // self.block_size]
        slots: np.ndarray = block_ids * np.int64(self.block_size) + positions % self.block_size
        return slots
