"""From layers and memory to a cache, and errors that say what would fit."""

from __future__ import annotations

import pytest

from octavo.errors import CapacityError
from octavo.kv_cache.layout import check_fits, group_layers, plan_kv_cache
from octavo.types.kv import FullAttentionSpec, KVCacheConfig

SMALL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, head_bytes=64)
LARGE = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, head_bytes=512)
SMALL_PAGE = 2 * 16 * 2 * 8 * 4  # K and V, tokens, heads, numbers, bytes


def test_a_page_holds_k_and_v_of_every_token_and_head() -> None:
    assert SMALL.page_bytes == SMALL_PAGE


def test_layers_with_equal_needs_share_a_group() -> None:
    groups = group_layers([SMALL, LARGE, SMALL, LARGE, LARGE])
    assert [(group.spec, group.layers) for group in groups] == [(SMALL, (0, 2)), (LARGE, (1, 3, 4))]
    assert groups[0].block_bytes == 2 * SMALL.page_bytes


def test_memory_is_filled_with_whole_blocks() -> None:
    config = plan_kv_cache([SMALL] * 3, 10 * 3 * SMALL_PAGE + SMALL_PAGE)
    assert config.num_blocks == 10
    assert config.total_bytes == 10 * 3 * SMALL_PAGE


def test_a_number_of_blocks_overrides_the_memory() -> None:
    assert plan_kv_cache([SMALL], 0, num_blocks=3).num_blocks == 3


@pytest.mark.parametrize(("num_blocks", "num_tokens"), [(0, 0), (1, 0), (2, 16), (11, 160)])
def test_the_null_block_holds_no_tokens(num_blocks: int, num_tokens: int) -> None:
    assert KVCacheConfig(num_blocks, group_layers([SMALL])).max_num_tokens == num_tokens


@pytest.mark.parametrize("specs", [[SMALL], [SMALL, LARGE]], ids=["one group", "two groups"])
@pytest.mark.parametrize("num_blocks", range(3, 12))
def test_the_longest_sequence_fits_exactly(specs: list[FullAttentionSpec], num_blocks: int) -> None:
    config = plan_kv_cache(specs, 0, num_blocks)
    check_fits(config, config.max_num_tokens)
    with pytest.raises(CapacityError):
        check_fits(config, config.max_num_tokens + 1)


def test_too_little_memory_names_both_sizes_and_the_length_that_fits() -> None:
    # 512 pages of 2 KiB are 1 MiB. 1000 tokens take 63 blocks and the null block; there are 8 besides it.
    config = plan_kv_cache([SMALL] * 512, 9 * 512 * SMALL_PAGE)
    with pytest.raises(CapacityError) as raised:
        check_fits(config, 1000)
    text = str(raised.value)
    assert "has 9 blocks (9.0 MiB)" in text
    assert "needs 64 blocks (64.0 MiB)" in text
    assert "max_model_len to at most 128" in text
    check_fits(config, 128)


def test_no_memory_at_all_is_an_error_too() -> None:
    with pytest.raises(CapacityError, match=r"needs 2 blocks.*give it more memory \(kv_cache_memory\)$"):
        check_fits(plan_kv_cache([SMALL], 0), 1)
