"""From layers and memory to a cache, and errors that say what would fit."""

from __future__ import annotations

import pytest

from octavo.errors import CapacityError
from octavo.kv_cache.layout import check_fits, group_layers, plan_kv_cache
from octavo.types.kv import FullAttentionSpec, KVCacheConfig, SlidingWindowSpec

SMALL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, head_bytes=64)
LARGE = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, head_bytes=512)
WINDOW = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=8, head_bytes=64, window=24)
SMALL_PAGE = 2 * 16 * 2 * 8 * 4  # K and V, tokens, heads, numbers, bytes


def test_a_page_holds_k_and_v_of_every_token_and_head() -> None:
    assert SMALL.page_bytes == SMALL_PAGE


def test_layers_with_equal_needs_share_a_group() -> None:
    groups = group_layers([SMALL, LARGE, SMALL, LARGE])
    assert [(group.spec, group.layers) for group in groups] == [(SMALL, (0, 2)), (LARGE, (1, 3))]


def test_a_layer_that_keeps_nothing_is_in_no_group() -> None:
    (group,) = group_layers([SMALL, None, SMALL, None])
    assert group.layers == (0, 2)


@pytest.mark.parametrize(
    ("counts", "size", "num_groups"),
    [((26,), 26, 1), ((15, 3), 3, 6), ((22, 4), 4, 7), ((29, 5), 5, 7), ((18, 20), 20, 2)],
    ids=str,
)
def test_groups_are_few_and_waste_little(counts: tuple[int, ...], size: int, num_groups: int) -> None:
    kinds = (WINDOW, SMALL)
    config = KVCacheConfig(
        10, group_layers([kind for kind, count in zip(kinds, counts, strict=False) for _ in range(count)])
    )
    assert (config.group_size, len(config.groups)) == (size, num_groups)
    assert sorted(layer for group in config.groups for layer in group.layers) == list(range(sum(counts)))


def test_every_page_of_a_pool_is_as_large_as_the_largest() -> None:
    config = KVCacheConfig(10, group_layers([SMALL, LARGE]))
    assert config.page_bytes == LARGE.page_bytes
    assert config.total_bytes == 10 * LARGE.page_bytes


def test_a_window_has_only_the_blocks_that_a_step_sees() -> None:
    # 24 tokens seen and 8 more computed are 31 in a row, which lie in 3 blocks of 16 at most.
    assert [WINDOW.num_blocks_for(num_tokens, max_chunk=8) for num_tokens in (16, 17, 48, 1000)] == [
        1,
        2,
        3,
        3,
    ]


def test_memory_is_filled_with_whole_blocks() -> None:
    config = plan_kv_cache([SMALL] * 3, 10 * 3 * SMALL_PAGE + SMALL_PAGE, 1)
    assert config.num_blocks == 10
    assert config.total_bytes == 10 * 3 * SMALL_PAGE


def test_a_number_of_blocks_overrides_the_memory() -> None:
    assert plan_kv_cache([SMALL], 0, 1, num_blocks=3).num_blocks == 3


@pytest.mark.parametrize(("num_blocks", "num_tokens"), [(0, 0), (1, 0), (2, 16), (11, 160)])
def test_the_null_block_holds_no_tokens(num_blocks: int, num_tokens: int) -> None:
    assert KVCacheConfig(num_blocks, group_layers([SMALL])).max_num_tokens == num_tokens


@pytest.mark.parametrize("specs", [[SMALL], [SMALL, LARGE]], ids=["one group", "two groups"])
@pytest.mark.parametrize("num_blocks", range(3, 12))
def test_the_longest_sequence_fits_exactly(specs: list[FullAttentionSpec], num_blocks: int) -> None:
    config = plan_kv_cache(specs, 0, 1, num_blocks)
    check_fits(config, config.max_num_tokens, "kv_cache_memory")
    with pytest.raises(CapacityError):
        check_fits(config, config.max_num_tokens + 1, "kv_cache_memory")


def test_too_little_memory_names_both_sizes_and_the_length_that_fits() -> None:
    # 512 pages of 2 KiB are 1 MiB. 1000 tokens take 63 blocks and the null block; there are 8 besides it.
    config = plan_kv_cache([SMALL] * 512, 9 * 512 * SMALL_PAGE, 1)
    with pytest.raises(CapacityError) as raised:
        check_fits(config, 1000, "kv_cache_memory")
    text = str(raised.value)
    assert "has 9 blocks (9.0 MiB)" in text
    assert "needs 64 blocks (64.0 MiB)" in text
    assert "max_model_len to at most 128" in text
    check_fits(config, 128, "kv_cache_memory")


def test_no_memory_at_all_is_an_error_too() -> None:
    with pytest.raises(CapacityError, match=r"needs 2 blocks.*give it more with kv_cache_memory$"):
        check_fits(plan_kv_cache([SMALL], 0, 1), 1, "kv_cache_memory")
