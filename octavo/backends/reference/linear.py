"""Matrix products in which each row of the result has the same bits, whatever the other rows are.

numpy computes float32 products with BLAS, which does not promise this. Measured with OpenBLAS 0.3.31 (numpy
2.4): a row's result depends on the number of rows, because kernels are chosen by shape. It can also depend on
the row's index: with the kernels for Haswell and Zen it does for 32 rows, and for 16 when the matrix is the
right factor. The index made no difference for up to 8 rows, nor, with the kernels for SkylakeX, Sapphire
Rapids, Sandy Bridge, Nehalem and Prescott, for up to 32.

So every product is computed in tiles with a constant number of rows, and the last tile is filled up with
zeros. A trial finds this number for each matrix.
"""

from __future__ import annotations

import numpy as np

# Tallest first: with taller tiles the matrix is read less often. A tile of a single row is always right.
_TILE_HEIGHTS = (16, 8, 4)


class TiledMatrix:
    """A matrix [out, in] float32 to multiply by."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.tile_height = next((height for height in _TILE_HEIGHTS if _rows_are_alike(values, height)), 1)

    def multiply(self, x: np.ndarray) -> np.ndarray:
        """x [n, in] float32 times the transposed matrix → [n, out] float32, contiguous."""
        num_rows, in_features = x.shape
        num_tiles = -(-num_rows // self.tile_height)
        tiles = np.zeros((num_tiles, self.tile_height, in_features), np.float32)
        tiles.reshape(-1, in_features)[:num_rows] = x
        return _multiply_tiles(tiles, self.values).reshape(-1, len(self.values))[:num_rows]


def _multiply_tiles(tiles: np.ndarray, values: np.ndarray) -> np.ndarray:
    """tiles [n, height, in] times the transposed `values` → [n, height, out].

    numpy calls BLAS once for each tile. The matrix is the left factor because OpenBLAS then takes half the
    time.
    """
    return np.ascontiguousarray((values @ tiles.transpose(0, 2, 1)).transpose(0, 2, 1))


def _rows_are_alike(values: np.ndarray, height: int) -> bool:
    """Whether a row's result has the same bits at every index of a tile of `height` rows.

    Two products of a random tile are compared. In the second, each row has moved to the next index.
    """
    tile = np.random.default_rng(0).standard_normal((1, height, values.shape[1]), dtype=np.float32)
    moved = np.roll(tile, 1, axis=1)
    return np.array_equal(np.roll(_multiply_tiles(tile, values), 1, axis=1), _multiply_tiles(moved, values))
