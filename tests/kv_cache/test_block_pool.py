"""Who may have which block, and what is evicted first."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from octavo.kv_cache.block import KVCacheBlock
from octavo.kv_cache.block_pool import BlockPool
from tests.kv_cache.publication import find, make_pool, publish


def release(pool: BlockPool, blocks: list[KVCacheBlock]) -> None:
    pool.free_blocks(reversed(blocks))


def test_the_null_block_is_never_given_out() -> None:
    pool = make_pool(4)
    assert [block.block_id for block in pool.get_new_blocks(3)] == [1, 2, 3]
    with pytest.raises(ValueError, match="cannot take 1 free blocks: there are 0"):
        pool.get_new_blocks(1)
    pool.free_blocks([pool.null_block])
    assert pool.num_free_blocks == 0


def test_usage_counts_neither_the_null_block_nor_free_cached_blocks() -> None:
    pool = make_pool(5)
    assert pool.usage == 0
    blocks = publish(pool, [1, 2, 3, 4])
    assert pool.usage == 0.5
    release(pool, blocks)
    assert pool.usage == 0
    assert find(pool, [1, 2, 3, 4]) == [1, 2]


def test_a_shared_block_is_free_only_without_references() -> None:
    pool = make_pool(3)
    (block,) = publish(pool, [1, 2])
    pool.touch([block])
    release(pool, [block])
    assert (block.ref_cnt, pool.num_free_blocks) == (1, 1)
    release(pool, [block])
    assert (block.ref_cnt, pool.num_free_blocks) == (0, 2)
    pool.touch([block])
    assert (block.ref_cnt, pool.num_free_blocks) == (1, 1)


def test_uncached_blocks_are_reused_before_cached_ones() -> None:
    pool = make_pool(5)
    cached, plain = publish(pool, [1, 2]), pool.get_new_blocks(1)
    release(pool, cached)
    release(pool, plain)
    assert [block.block_id for block in pool.free_block_queue] == [2, 3, 4, 1]


def test_eviction_takes_the_least_recently_freed_and_tails_before_heads() -> None:
    pool = make_pool(64)
    a = list(range(40))
    b = list(range(100, 140))
    for tokens in (a, b):  # 20 blocks each
        release(pool, publish(pool, tokens))
    c = pool.get_new_blocks(30)  # 23 were never used, so 7 are evicted
    assert len(find(pool, a)) == 13, "the tail of the older one goes first, block by block"
    assert len(find(pool, b)) == 20
    more = pool.get_new_blocks(20)  # the rest of A and the tail of B
    assert find(pool, a) == []
    assert len(find(pool, b)) == 13
    pool.check({block.block_id: 1 for block in [*c, *more]})


def test_a_touched_prefix_outlives_one_that_was_freed_later() -> None:
    pool = make_pool(5)
    a, b = publish(pool, [1, 2]), publish(pool, [3, 4])
    release(pool, a)
    release(pool, b)
    pool.touch(a)
    release(pool, a)
    pool.get_new_blocks(3)
    assert find(pool, [1, 2]) == [a[0].block_id]
    assert find(pool, [3, 4]) == []


def test_a_reset_forgets_everything_when_no_block_has_references() -> None:
    pool = make_pool(4)
    blocks = publish(pool, [1, 2, 3, 4])
    assert pool.reset_prefix_cache() is False
    assert len(find(pool, [1, 2, 3, 4])) == 2
    release(pool, blocks)
    assert pool.reset_prefix_cache() is True
    assert find(pool, [1, 2, 3, 4]) == []
    pool.check({})


# --------------------------------------------------------------------------------- corruption that check sees


def corrupt_ref_cnt(pool: BlockPool, held: KVCacheBlock, cached: KVCacheBlock) -> None:
    held.ref_cnt += 1


def leak_a_free_block(pool: BlockPool, held: KVCacheBlock, cached: KVCacheBlock) -> None:
    pool.free_block_queue.remove(cached)


def free_a_held_block(pool: BlockPool, held: KVCacheBlock, cached: KVCacheBlock) -> None:
    pool.free_block_queue.append_n([held])


def free_the_null_block(pool: BlockPool, held: KVCacheBlock, cached: KVCacheBlock) -> None:
    pool.free_block_queue.append_n([pool.null_block])


def miscount_the_free_queue(pool: BlockPool, held: KVCacheBlock, cached: KVCacheBlock) -> None:
    pool.free_block_queue.num_free_blocks += 1


@pytest.mark.parametrize(
    ("corrupt", "complaint"),
    [
        (corrupt_ref_cnt, "should have 1 references"),
        (leak_a_free_block, "wrongly in or out of the free queue"),
        (free_a_held_block, "wrongly in or out of the free queue"),
        (free_the_null_block, "the null block was freed"),
        (miscount_the_free_queue, "the free queue's count differs"),
    ],
)
def test_check_sees_every_kind_of_corruption(
    corrupt: Callable[[BlockPool, KVCacheBlock, KVCacheBlock], None], complaint: str
) -> None:
    pool = make_pool(5)
    held, cached = publish(pool, [1, 2, 3, 4])
    release(pool, [cached])
    pool.check({held.block_id: 1})
    corrupt(pool, held, cached)
    with pytest.raises(AssertionError, match=re.escape(complaint)):
        pool.check({held.block_id: 1})


def test_check_sees_a_wrong_reference_count() -> None:
    pool = make_pool(5)
    (block,) = publish(pool, [1, 2])
    with pytest.raises(AssertionError, match="should have 0 references"):
        pool.check({})
    with pytest.raises(AssertionError, match="should have 2 references"):
        pool.check({block.block_id: 2})
