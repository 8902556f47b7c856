from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.reference import linear
from octavo.backends.reference.linear import TiledMatrix

SHAPES = [(101, 48), (61, 24), (64, 576), (576, 64), (1, 8), (8, 1)]


def random_array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


class PlaceDependent(np.ndarray):
    """A matrix whose products differ in the last bits from the 12th row of a tile on."""

    def __matmul__(self, tiles: np.ndarray) -> np.ndarray:
        products = self.view(np.ndarray) @ tiles
        products[..., 12:] *= np.float32(1 + 2**-20)
        return products


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_rows", [0, 1, 15, 16, 17, 40])
def test_product_is_right(shape: tuple[int, int], num_rows: int) -> None:
    values, x = random_array(*shape), random_array(num_rows, shape[1], seed=1)
    exact = x.astype(np.float64) @ values.T.astype(np.float64)
    # Sums of at most 576 terms of about 1 stay below 100, where float32 numbers are up to 8e-6 apart.
    np.testing.assert_allclose(TiledMatrix(values).multiply(x), exact, rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_is_the_same_bits_in_any_company(shape: tuple[int, int]) -> None:
    matrix, x = TiledMatrix(random_array(*shape)), random_array(50, shape[1], seed=1)
    whole = matrix.multiply(x)
    for start in range(50):
        for stop in (start + 1, start + 3, start + 17):
            assert np.array_equal(matrix.multiply(x[start:stop]), whole[start:stop])


def test_tile_is_as_tall_as_all_its_places_are_equal() -> None:
    assert TiledMatrix(random_array(20, 30).view(PlaceDependent)).tile_height == 8


def test_rows_go_one_by_one_when_no_tile_has_equal_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_rows_are_alike", lambda values, height: False)
    values, x = random_array(20, 30), random_array(5, 30, seed=1)
    matrix = TiledMatrix(values)
    assert matrix.tile_height == 1
    np.testing.assert_allclose(matrix.multiply(x), x @ values.T, rtol=0, atol=1e-4)
