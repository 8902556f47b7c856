"""What can be found by content, exactly, and what an observer hears of it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from octavo.kv_cache.block import NO_PREFIX, KVCacheBlock
from octavo.kv_cache.block_pool import BlockPool
from octavo.kv_cache.hashing import NO_DIGEST, encode_tokens
from octavo.types.observer import Observer, StoredBlock
from tests.kv_cache.publication import find, hashes_of, make_pool, publish, publish_hashes
from tests.seeds import every_seed


def release(pool: BlockPool, blocks: list[KVCacheBlock]) -> None:
    pool.free_blocks(reversed(blocks))


def longest_head(pool: BlockPool, token_ids: list[int], parent_id: int = NO_PREFIX) -> int:
    found = pool.index.find_longest_head(parent_id, b"", encode_tokens(token_ids))
    return found[1] if found else 0


def test_an_evicted_block_can_no_longer_be_found() -> None:
    pool = make_pool(2)
    release(pool, publish(pool, [1, 2]))
    publish(pool, [8, 9])
    assert find(pool, [1, 2]) == []
    assert find(pool, [8, 9]) == [1]
    assert len(pool.index) == 1
    pool.check({1: 1})


def test_equal_content_may_lie_in_two_blocks_and_either_leads_on() -> None:
    pool = make_pool(8)
    one, other = publish(pool, [1, 2, 3, 4]), publish(pool, [1, 2, 3, 4])
    assert [block.prefix for block in one] == [block.prefix for block in other]
    release(pool, one)
    pool.get_new_blocks(5)  # evicts `one`
    assert find(pool, [1, 2, 3, 4]) == [block.block_id for block in other]


def test_of_equal_blocks_the_one_that_most_hold_is_shared() -> None:
    pool = make_pool(8)
    (one,), (other,) = publish(pool, [1, 2]), publish(pool, [1, 2])
    assert one.prefix is not None
    pool.touch([other])
    assert one.prefix.get_block(0) is other
    pool.touch([one, one])
    assert one.prefix.get_block(0) is one


def test_a_chain_may_be_found_across_twins() -> None:
    pool = make_pool(8)
    one, other = publish(pool, [1, 2, 3, 4]), publish(pool, [1, 2, 3, 4, 5, 6])
    release(pool, one[1:])
    release(pool, other[:1])
    assert len(find(pool, [1, 2, 3, 4, 5, 6])) == 3


def test_groups_do_not_find_each_others_blocks_but_share_prefixes() -> None:
    pool = make_pool(8, num_groups=2)
    (one,) = publish(pool, [1, 2], group_ids=(1,))
    assert find(pool, [1, 2], group_id=0) == []
    assert find(pool, [1, 2], group_id=1) == [1]
    (other,) = publish(pool, [1, 2], group_ids=(0,))
    assert one.prefix is other.prefix
    pool.check({1: 1, 2: 1})


def test_publishing_a_block_twice_is_a_bug() -> None:
    pool = make_pool(4)
    blocks = publish(pool, [1, 2])
    with pytest.raises(AssertionError, match="published twice"):
        pool.index.publish(hashes_of([1, 2])[0], NO_PREFIX, None, blocks)


def test_a_prefix_without_any_block_is_not_kept_but_has_an_identity() -> None:
    pool = make_pool(4)
    first, second = hashes_of([1, 2, 3, 4])
    ids = [pool.index.publish(first, NO_PREFIX, None, [pool.null_block]) for _ in range(2)]
    assert len({NO_PREFIX, *ids}) == 3
    assert len(pool.index) == 0
    blocks = pool.get_new_blocks(1)
    pool.index.publish(second, ids[0], first.digest, blocks)
    assert pool.index.find(second, ids[0]) is blocks[0].prefix
    assert pool.index.find(second, ids[1]) is None
    assert pool.index.find(second, None) is blocks[0].prefix


@pytest.mark.parametrize("digest_bits", [0, 3])
def test_colliding_digests_cost_hits_but_are_never_believed(digest_bits: int) -> None:
    pool = make_pool(200)
    sequences = [[a, b, c, d] for a in range(3) for b in range(3) for c in range(3) for d in range(3)]
    owners: dict[int, list[int]] = {}

    def weak(token_ids: list[int]) -> list:
        return [
            h._replace(digest=bytes([1, h.digest[0] & (2**digest_bits - 1)])) for h in hashes_of(token_ids)
        ]

    for tokens in sequences:
        first, second = publish_hashes(pool, weak(tokens))
        owners |= {first.block_id: tokens[:2], second.block_id: tokens}
    for tokens in sequences:
        prefix_id = NO_PREFIX
        for length, block_hash in zip((2, 4), weak(tokens), strict=True):
            prefix = pool.index.find(block_hash, prefix_id)
            assert prefix is not None
            assert {tuple(owners[block.block_id]) for block in prefix.blocks[0]} == {tuple(tokens[:length])}
            prefix_id = prefix.prefix_id
    pool.check(dict.fromkeys(owners, 1))


# ------------------------------------------------------------------------------------------------------ heads


@every_seed(30)
def test_the_longest_head_among_all_children_is_found_after_any_changes(seed: int) -> None:
    rng = random.Random(seed)
    pool = make_pool(40)
    held: list[tuple[KVCacheBlock, list[int]]] = []
    for _ in range(200):
        tokens = [rng.choice([1, 256, 2**31 - 1]) for _ in range(rng.randint(1, 4))]
        if pool.num_free_blocks and rng.random() < 0.6:
            blocks = pool.get_new_blocks(1)
            pool.index.publish_tail(b"", encode_tokens(tokens), NO_PREFIX, blocks)
            held.append((blocks[0], tokens))
        elif held:
            block, _ = held.pop(rng.randrange(len(held)))
            if block.prefix is not None:
                pool.index.remove(block)
            pool.free_blocks([block])
        known = [tokens for block, tokens in held if block.prefix is not None]
        expected = max((num_common(tokens, other) for other in known), default=0)
        assert longest_head(pool, tokens) == expected
        pool.check({block.block_id: 1 for block, _ in held})


def num_common(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def test_heads_are_looked_for_after_one_prefix_only() -> None:
    pool = make_pool(9)
    first, _ = publish(pool, [1, 2, 3, 4])
    publish(pool, [5, 6])
    assert first.prefix is not None
    assert longest_head(pool, [3, 9], first.prefix.prefix_id) == 1
    assert longest_head(pool, [3, 9]) == 0
    assert longest_head(pool, [5, 9], first.prefix.prefix_id) == 0


def test_a_head_is_found_only_where_all_groups_have_it() -> None:
    pool = make_pool(9, num_groups=2)
    _, other = publish(pool, [1, 2], group_ids=(0, 1))
    publish(pool, [1, 3], group_ids=(0,))
    assert longest_head(pool, [1, 3]) == 1
    pool.index.remove(other)
    assert longest_head(pool, [1, 2]) == 0
    pool.check({1: 1, 2: 1, 3: 1})
    blocks = [pool.null_block, *pool.get_new_blocks(1)]
    pool.index.publish(hashes_of([1, 2])[0], NO_PREFIX, None, blocks)
    assert longest_head(pool, [1, 2]) == 2
    pool.check({1: 1, 2: 1, 3: 1, 4: 1})


def test_a_tail_that_some_group_lacks_is_not_published() -> None:
    pool = make_pool(9, num_groups=2)
    (block,) = pool.get_new_blocks(1)
    pool.index.publish_tail(b"", encode_tokens([1]), NO_PREFIX, [block, pool.null_block])
    assert block.prefix is None


def test_a_tail_is_no_full_block() -> None:
    pool = make_pool(9)
    (block,) = pool.get_new_blocks(1)
    pool.index.publish_tail(b"", encode_tokens([1]), NO_PREFIX, [block])
    assert block.prefix is not None
    assert block.prefix.block_hash.digest == NO_DIGEST
    assert len(pool.index) == 0
    pool.check({1: 1})


# -------------------------------------------------------------------------------------------------- observers


class Diary(Observer):
    """Writes down what it hears of blocks."""

    def __init__(self) -> None:
        self.entries: list[object] = []

    def block_stored(self, stored: StoredBlock) -> None:
        self.entries.append(stored)

    def block_removed(self, block_hash: bytes, group_id: int) -> None:
        self.entries.append((block_hash, group_id))

    def all_blocks_cleared(self) -> None:
        self.entries.append("cleared")

    def take(self) -> list[object]:
        taken, self.entries = self.entries, []
        return taken


def test_an_observer_gets_an_event_for_the_first_and_last_block_of_a_content() -> None:
    diary = Diary()
    pool = make_pool(9, num_groups=2, observer=diary)
    first, second = hashes_of([1, 2, 3, 4])
    one = publish(pool, [1, 2, 3, 4], group_ids=(0, 1))
    assert diary.take() == [
        StoredBlock(first.digest, None, encode_tokens([1, 2]), b"", 0),
        StoredBlock(first.digest, None, encode_tokens([1, 2]), b"", 1),
        StoredBlock(second.digest, first.digest, encode_tokens([3, 4]), b"", 0),
        StoredBlock(second.digest, first.digest, encode_tokens([3, 4]), b"", 1),
    ]
    other = publish(pool, [1, 2, 3, 4], group_ids=(1,))
    assert diary.take() == []
    for block in one:
        pool.index.remove(block)
    assert diary.take() == [(first.digest, 0), (second.digest, 0)]
    for block in other:
        pool.index.remove(block)
    assert diary.take() == [(first.digest, 1), (second.digest, 1)]


def test_a_content_with_two_identities_is_removed_with_the_last_of_them() -> None:
    """The beginning of a sequence was forgotten, and computed again, while its end stayed."""
    diary = Diary()
    pool = make_pool(9, observer=diary)
    _, end = publish(pool, [1, 2, 3, 4])
    pool.index.remove(pool.blocks[1])
    again = publish(pool, [1, 2, 3, 4])
    assert end.prefix is not again[1].prefix
    assert pool.index.find(hashes_of([1, 2, 3, 4])[1], None) is again[1].prefix, "the latest"
    digests = [block_hash.digest for block_hash in hashes_of([1, 2, 3, 4])]
    assert [entry[0] for entry in diary.take()] == [*digests, digests[0], digests[0]]
    pool.index.remove(end)
    assert diary.take() == []
    pool.index.remove(again[1])
    assert diary.take() == [(digests[1], 0)]


def test_an_observer_gets_an_event_for_a_reset_and_none_for_tails() -> None:
    diary = Diary()
    pool = make_pool(9, observer=diary)
    blocks = pool.get_new_blocks(1)
    pool.index.publish_tail(b"", encode_tokens([1]), NO_PREFIX, blocks)
    pool.index.remove(blocks[0])
    assert diary.take() == []
    pool.free_blocks(blocks)
    assert pool.reset_prefix_cache()
    assert diary.take() == ["cleared"]


# --------------------------------------------------------------------------------- corruption that check sees


def hide_a_prefix(pool: BlockPool, block: KVCacheBlock) -> None:
    pool.index._by_digest.clear()


def forget_a_child(pool: BlockPool, block: KVCacheBlock) -> None:
    pool.index._children.clear()


def keep_a_stale_entry(pool: BlockPool, block: KVCacheBlock) -> None:
    block.prefix = None


def move_to_another_group(pool: BlockPool, block: KVCacheBlock) -> None:
    block.group_id = 1


def miscount_the_groups(pool: BlockPool, block: KVCacheBlock) -> None:
    assert block.prefix is not None
    block.prefix.num_groups -= 1


def mix_up_siblings(pool: BlockPool, block: KVCacheBlock) -> None:
    pool.index._children[NO_PREFIX].reverse()


def keep_a_stale_prefix(pool: BlockPool, block: KVCacheBlock) -> None:
    assert block.prefix is not None
    pool.index._by_digest[b"stale"] = [block.prefix]


@pytest.mark.parametrize(
    ("corrupt", "complaint"),
    [
        (hide_a_prefix, "cached but cannot be found"),
        (forget_a_child, "not among its siblings"),
        (keep_a_stale_entry, "blocks that do not hold it"),
        (move_to_another_group, "not listed under its prefix"),
        (miscount_the_groups, "miscounts its groups"),
        (mix_up_siblings, "siblings are out of order"),
        (keep_a_stale_prefix, "prefixes without blocks are found"),
    ],
)
def test_check_sees_every_kind_of_corruption(
    corrupt: Callable[[BlockPool, KVCacheBlock], None], complaint: str
) -> None:
    pool = make_pool(9, num_groups=2)
    block, *_ = publish(pool, [1, 2], group_ids=(0, 1))
    publish(pool, [3, 4], group_ids=(0, 1))
    expected = dict.fromkeys(range(1, 5), 1)
    pool.check(expected)
    corrupt(pool, block)
    with pytest.raises(AssertionError, match=re.escape(complaint)):
        pool.check(expected)
