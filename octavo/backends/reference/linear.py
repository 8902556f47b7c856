"""Matrix products whose every row is the same bits whatever rows are around it.

numpy's float32 products go to BLAS, and BLAS promises no such thing. Measured with OpenBLAS 0.3.31 (numpy
2.4): a row's result depends on how many rows there are, because kernels are chosen by shape, and may depend
even on its place among them: with the kernels for Haswell and Zen it does for 32 rows, and for 16 when the
matrix stands on the right. All places gave the same bits for up to 8 rows, and with the kernels for SkylakeX,
Sapphire Rapids, Sandy Bridge, Nehalem and Prescott for up to 32.

So every product is made of tiles with a constant number of rows, the last one filled up with zeros, and that
number is found for each matrix by trying.
"""

from __future__ import annotations

import numpy as np

# Tallest first: a tall tile reads the matrix less often. A single row has only one place to be.
_TILE_HEIGHTS = (16, 8, 4)


class TiledMatrix:
    """A matrix [out, in] float32 to multiply by."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.tile_height = next((height for height in _TILE_HEIGHTS if _all_places_equal(values, height)), 1)

    def multiply(self, x: np.ndarray) -> np.ndarray:
        """x [n, in] float32 times the transposed matrix → [n, out] float32, contiguous."""
        num_rows, in_features = x.shape
        num_tiles = -(-num_rows // self.tile_height)
        tiles = np.zeros((num_tiles, self.tile_height, in_features), np.float32)
        tiles.reshape(-1, in_features)[:num_rows] = x
        return _multiply_tiles(tiles, self.values).reshape(-1, len(self.values))[:num_rows]


def _multiply_tiles(tiles: np.ndarray, values: np.ndarray) -> np.ndarray:
    """tiles [n, height, in] times the transposed `values` → [n, height, out].

    numpy calls BLAS once for each tile. The matrix stands on the left because OpenBLAS then takes half the
    time.
    """
    return np.ascontiguousarray((values @ tiles.transpose(0, 2, 1)).transpose(0, 2, 1))


def _all_places_equal(values: np.ndarray, height: int) -> bool:
    """Whether a tile of `height` rows gives each row the same bits in every place.

    Each row of a random tile moves on to the next place; rows being different, any two places that compute
    differently show.
    """
    tile = np.random.default_rng(0).standard_normal((1, height, values.shape[1]), dtype=np.float32)
    moved = np.roll(tile, 1, axis=1)
    return np.array_equal(np.roll(_multiply_tiles(tile, values), 1, axis=1), _multiply_tiles(moved, values))
