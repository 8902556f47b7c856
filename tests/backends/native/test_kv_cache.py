"""What makes a native KV cache: checked before any memory is touched, kept while something points to it."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest

from octavo.backends.native.library import load_library
from tests.native import NATIVE

pytestmark = list(NATIVE.marks)

# A page of 16 tokens with 2 heads of 32 features in bf16.
PAGES = {"num_pages": 2, "num_blocks": 4, "page_bytes": 4096}
LAYER = {"page": 1, "type": "bf16", "block_size": 16, "num_kv_heads": 2, "head_size": 32}


def make_pages(**changes: Any) -> Any:
    return load_library().KVPages(**{**PAGES, **changes})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_pages": -1}, "num_pages is -1; it must be from 0 to 65536"),
        ({"num_blocks": 0}, "num_blocks is 0; it must be from 1 to 2147483647"),
        ({"page_bytes": 4000}, "page_bytes is 4000; it must be a multiple of 64"),
        ({"page_bytes": -64}, "page_bytes is -64; it must be from 0"),
    ],
)
def test_pages_of_no_possible_size_are_refused(changes: dict[str, int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_pages(**changes)


def test_more_pages_than_bytes_can_be_counted_are_out_of_memory() -> None:
    with pytest.raises(MemoryError):
        make_pages(num_pages=2**16, num_blocks=2**31 - 1, page_bytes=2**40)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"page": 2}, "page is 2; it must be from 0 to 1"),
        ({"page": -1}, "page is -1; it must be from 0 to 1"),
        ({"type": "f16"}, "type is 'f16'; it must be bf16, f32 or fp8_e4m3"),
        ({"block_size": 24}, "block_size is 24; it must be a multiple of 16"),
        ({"head_size": 257}, "head_size is 257; it must be from 16 to 256"),
        ({"num_kv_heads": 0}, "num_kv_heads is 0; it must be from 1"),
        ({"num_kv_heads": 3}, "a page has 4096 bytes; the layer needs 6144"),
        ({"type": "f32"}, "a page has 4096 bytes; the layer needs 8192"),
    ],
)
def test_layers_that_have_no_place_in_the_pages_are_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_pages().layer(**{**LAYER, **changes})


def test_blocks_are_zeroed_and_copied_in_all_pages_to_their_last_byte() -> None:
    pages = make_pages(num_pages=3, num_blocks=6)
    assert not pages.bytes.any()
    pages.bytes[:] = np.random.default_rng(0).integers(1, 256, pages.bytes.shape, np.uint8)
    expected = pages.bytes.copy()
    expected[:, [4, 1]] = expected[:, [2, 2]]
    pages.copy_blocks(np.array([2, 2], np.int32), np.array([4, 1], np.int32))
    assert np.array_equal(pages.bytes, expected)
    expected[:, [5, 2]] = 0
    pages.zero_blocks(np.array([5, 2], np.int32))
    assert np.array_equal(pages.bytes, expected)


def test_the_pages_live_as_long_as_a_layers_cache() -> None:
    pages = make_pages()
    alone = sys.getrefcount(pages)
    cache = pages.layer(**LAYER)
    assert sys.getrefcount(pages) == alone + 1
    del cache
    gc.collect()
    assert sys.getrefcount(pages) == alone
