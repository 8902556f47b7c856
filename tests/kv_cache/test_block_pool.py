"""Who may have which block, what is evicted first, and what can be found by content."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from octavo.kv_cache.block import KVCacheBlock
from octavo.kv_cache.block_pool import BlockPool
from octavo.kv_cache.hashing import BlockHash, extend_block_hashes


def hashes_of(token_ids: list[int], block_size: int = 2) -> list[BlockHash]:
    hashes: list[BlockHash] = []
    extend_block_hashes(hashes, token_ids, len(token_ids), block_size, None)
    return hashes


def publish(pool: BlockPool, token_ids: list[int], group_id: int = 0) -> list[KVCacheBlock]:
    """New blocks that hold `token_ids`, two tokens each, held by one request and published."""
    hashes = hashes_of(token_ids)
    blocks = pool.get_new_blocks(len(hashes))
    pool.cache_full_blocks(blocks, hashes, 0, len(hashes), group_id)
    return blocks


def find(pool: BlockPool, token_ids: list[int], group_id: int = 0) -> list[int]:
    """Ids of the cached blocks that `token_ids` begin with."""
    found, prefix_id = [], 0
    for block_hash in hashes_of(token_ids):
        block = pool.get_cached_block(block_hash, prefix_id, group_id)
        if block is None:
            break
        found.append(block.block_id)
        prefix_id = block.prefix_id
    return found


def release(pool: BlockPool, blocks: list[KVCacheBlock]) -> None:
    pool.free_blocks(reversed(blocks))


def test_the_null_block_is_never_given_out() -> None:
    pool = BlockPool(4)
    assert [block.block_id for block in pool.get_new_blocks(3)] == [1, 2, 3]
    with pytest.raises(ValueError, match="cannot take 1 free blocks: there are 0"):
        pool.get_new_blocks(1)
    pool.free_blocks([pool.null_block])
    assert pool.num_free_blocks == 0


def test_usage_leaves_out_the_null_block_and_cached_blocks_that_nobody_holds() -> None:
    pool = BlockPool(5)
    assert pool.usage == 0
    blocks = publish(pool, [1, 2, 3, 4])
    assert pool.usage == 0.5
    release(pool, blocks)
    assert pool.usage == 0
    assert find(pool, [1, 2, 3, 4]) == [1, 2]


def test_a_shared_block_is_free_only_when_the_last_holder_lets_go() -> None:
    pool = BlockPool(3)
    (block,) = publish(pool, [1, 2])
    pool.touch([block])
    release(pool, [block])
    assert (block.ref_cnt, pool.num_free_blocks) == (1, 1)
    release(pool, [block])
    assert (block.ref_cnt, pool.num_free_blocks) == (0, 2)
    pool.touch([block])
    assert (block.ref_cnt, pool.num_free_blocks) == (1, 1)


def test_uncached_blocks_are_reused_before_cached_ones() -> None:
    pool = BlockPool(5)
    cached, plain = publish(pool, [1, 2]), pool.get_new_blocks(1)
    release(pool, cached)
    release(pool, plain)
    assert [block.block_id for block in pool.free_block_queue] == [2, 3, 4, 1]


def test_eviction_takes_the_least_recently_freed_and_tails_before_heads() -> None:
    pool = BlockPool(64)
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
    pool = BlockPool(5)
    a, b = publish(pool, [1, 2]), publish(pool, [3, 4])
    release(pool, a)
    release(pool, b)
    pool.touch(a)
    release(pool, a)
    pool.get_new_blocks(3)
    assert find(pool, [1, 2]) == [a[0].block_id]
    assert find(pool, [3, 4]) == []


def test_an_evicted_block_can_no_longer_be_found() -> None:
    pool = BlockPool(2)
    release(pool, publish(pool, [1, 2]))
    publish(pool, [8, 9])
    assert find(pool, [1, 2]) == []
    assert find(pool, [8, 9]) == [1]
    pool.check({1: 1})


def test_equal_content_may_lie_in_two_blocks_and_either_leads_on() -> None:
    pool = BlockPool(8)
    one, other = publish(pool, [1, 2, 3, 4]), publish(pool, [1, 2, 3, 4])
    assert [block.prefix_id for block in one] == [block.prefix_id for block in other]
    release(pool, one)
    pool.get_new_blocks(5)  # evicts `one`
    assert find(pool, [1, 2, 3, 4]) == [block.block_id for block in other]


def test_a_chain_may_be_found_across_twins() -> None:
    pool = BlockPool(8)
    one, other = publish(pool, [1, 2, 3, 4]), publish(pool, [1, 2, 3, 4, 5, 6])
    release(pool, one[1:])
    release(pool, other[:1])
    assert len(find(pool, [1, 2, 3, 4, 5, 6])) == 3


def test_groups_do_not_find_each_others_blocks() -> None:
    pool = BlockPool(4)
    publish(pool, [1, 2], group_id=1)
    assert find(pool, [1, 2], group_id=0) == []
    assert find(pool, [1, 2], group_id=1) == [1]


def test_publishing_a_block_twice_is_a_bug() -> None:
    pool = BlockPool(4)
    blocks = publish(pool, [1, 2])
    with pytest.raises(AssertionError, match="published twice"):
        pool.cache_full_blocks(blocks, hashes_of([1, 2]), 0, 1, 0)


def test_a_reset_forgets_everything_once_nobody_holds_a_block() -> None:
    pool = BlockPool(4)
    blocks = publish(pool, [1, 2, 3, 4])
    assert pool.reset_prefix_cache() is False
    assert len(find(pool, [1, 2, 3, 4])) == 2
    release(pool, blocks)
    assert pool.reset_prefix_cache() is True
    assert find(pool, [1, 2, 3, 4]) == []
    pool.check({})


# ------------------------------------------------------------------------------------------------- collisions


@pytest.mark.parametrize("digest_bits", [0, 3])
def test_colliding_digests_cost_hits_but_are_never_believed(digest_bits: int) -> None:
    pool = BlockPool(200)

    def weak(token_ids: list[int]) -> list[BlockHash]:
        return [h._replace(digest=bytes([h.digest[0] & (2**digest_bits - 1)])) for h in hashes_of(token_ids)]

    sequences = [[a, b, c, d] for a in range(3) for b in range(3) for c in range(3) for d in range(3)]
    owners: dict[int, list[int]] = {}
    for tokens in sequences:
        blocks = pool.get_new_blocks(2)
        pool.cache_full_blocks(blocks, weak(tokens), 0, 2, 0)
        owners |= {blocks[0].block_id: tokens[:2], blocks[1].block_id: tokens}
    for tokens in sequences:
        first, second = weak(tokens)
        head = pool.get_cached_block(first, 0, 0)
        assert head is not None
        assert owners[head.block_id] == tokens[:2]
        tail = pool.get_cached_block(second, head.prefix_id, 0)
        assert tail is not None
        assert owners[tail.block_id] == tokens
    pool.check(dict.fromkeys(owners, 1))


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


def hide_a_cached_block(pool: BlockPool, held: KVCacheBlock, cached: KVCacheBlock) -> None:
    pool._cached.clear()


def keep_a_stale_entry(pool: BlockPool, held: KVCacheBlock, cached: KVCacheBlock) -> None:
    cached.forget_content()


@pytest.mark.parametrize(
    ("corrupt", "complaint"),
    [
        (corrupt_ref_cnt, "should have 1 references"),
        (leak_a_free_block, "wrongly in or out of the free queue"),
        (free_a_held_block, "wrongly in or out of the free queue"),
        (free_the_null_block, "the null block was freed"),
        (miscount_the_free_queue, "the free queue's count differs"),
        (hide_a_cached_block, "cached but cannot be found"),
        (keep_a_stale_entry, "blocks that are not cached"),
    ],
)
def test_check_sees_every_kind_of_corruption(
    corrupt: Callable[[BlockPool, KVCacheBlock, KVCacheBlock], None], complaint: str
) -> None:
    pool = BlockPool(5)
    held, cached = publish(pool, [1, 2, 3, 4])
    release(pool, [cached])
    pool.check({held.block_id: 1})
    corrupt(pool, held, cached)
    with pytest.raises(AssertionError, match=re.escape(complaint)):
        pool.check({held.block_id: 1})


def test_check_sees_a_block_that_its_holders_do_not_know_of() -> None:
    pool = BlockPool(5)
    (block,) = publish(pool, [1, 2])
    with pytest.raises(AssertionError, match="should have 0 references"):
        pool.check({})
    with pytest.raises(AssertionError, match="should have 2 references"):
        pool.check({block.block_id: 2})
