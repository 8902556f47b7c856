"""`BlockTable`: which block holds which tokens, for every row of the worker, in one KV cache group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class BlockTable:
    """Block ids by row. A row is overwritten when a request takes it, and only grows in between."""

    def __init__(self, num_rows: int, max_num_tokens: int, block_size: int) -> None:
        self.block_size = block_size
        max_num_blocks = -(-max_num_tokens // block_size)
        self.block_ids = np.zeros((num_rows, max_num_blocks), np.int32)  # [rows, most blocks]; 0 past the end
        self.num_blocks = np.zeros(num_rows, np.int64)  # [rows]

    def set_row(self, row: int, block_ids: Sequence[int]) -> None:
        """Give `row` these blocks and no others."""
        self.block_ids[row, : self.num_blocks[row]] = 0
        self.num_blocks[row] = 0
        self.append_row(row, block_ids)

    def append_row(self, row: int, block_ids: Sequence[int]) -> None:
        """Give `row` further blocks."""
        start = self.num_blocks[row]
        stop = start + len(block_ids)
        assert stop <= self.block_ids.shape[1], f"row {row} has no room for {len(block_ids)} more blocks"
        self.block_ids[row, start:stop] = block_ids
        self.num_blocks[row] = stop

    def get_rows(self, rows: np.ndarray) -> np.ndarray:
        """The tables of `rows` [n] as [n, B] int32, B blocks being the most that any of them has."""
        return self.block_ids[rows, : max(self.num_blocks[rows].tolist(), default=0)]

    def compute_slot_mapping(self, token_rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Where in the cache the tokens at `positions` [T] of `token_rows` [T] lie: [T] int64."""
        block_ids = self.block_ids[token_rows, positions // self.block_size]
        return block_ids * np.int64(self.block_size) + positions % self.block_size
