"""`PrefixIndex`: which blocks hold the KV of which beginnings of sequences.

Tells the observer what is cached. Knows nothing of references to blocks, and does not decide when one is
forgotten.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import lt

from octavo.kv_cache.block import CachedPrefix, KVCacheBlock
from octavo.kv_cache.hashing import NO_DIGEST, TOKEN_BYTES, BlockHash
from octavo.types.observer import Observer, StoredBlock


class PrefixIndex:
    """Finds prefixes by the digest of their last block, and by the first tokens of their last block.

    Several blocks may have the same content, since a request can compute tokens that are cached. Neither
    block replaces the other: the block table of a running request only grows.
    """

    def __init__(self, num_groups: int, num_cached_groups: int, observer: Observer) -> None:
        self.num_groups = num_groups
        self._num_cached_groups = num_cached_groups  # groups that publish blocks
        self._observer = observer
        self._by_digest: dict[bytes, list[CachedPrefix]] = {}  # prefixes whose last block is full
        # By parent, its children of which all groups have a block, sorted by content.
        self._children: dict[int, list[CachedPrefix]] = {}
        self._last_id = 0

    def __len__(self) -> int:
        """Number of prefixes whose last block is full."""
        return sum(map(len, self._by_digest.values()))

    def find(self, block_hash: BlockHash, parent_id: int | None) -> CachedPrefix | None:
        """The cached prefix that ends with this full block and has that parent, or None. Pure.

        The block's tokens are compared. Without a `parent_id` the digest alone vouches for the tokens before
        the block. The latest of several prefixes is taken, since its other blocks are the least likely to be
        forgotten.
        """
        for prefix in reversed(self._by_digest.get(block_hash.digest, ())):
            if parent_id in (None, prefix.parent_id) and prefix.block_hash == block_hash:
                return prefix
        return None

    def find_longest_head(
        self, parent_id: int, extra_keys: bytes, token_bytes: bytes
    ) -> tuple[CachedPrefix, int] | None:
        """The child of that parent, cached in all groups, whose last block shares the most leading tokens
        with `token_bytes`, and the number of these tokens. None if no child shares any. Pure.
        """
        siblings = self._children.get(parent_id, [])
        content = (extra_keys, token_bytes)
        position = bisect_left(siblings, content, key=lambda prefix: prefix.content)
        # In lexicographic order, one of the two neighbours of a content shares the most with it.
        nearest = [
            (_num_common_tokens(prefix.block_hash.token_bytes, token_bytes), prefix)
            for prefix in siblings[max(position - 1, 0) : position + 1]
            if prefix.block_hash.extra_keys == extra_keys
        ]
        count, best = max(nearest, key=lambda found: found[0], default=(0, None))
        return (best, count) if best is not None and count else None

    def publish(
        self,
        block_hash: BlockHash,
        parent_id: int,
        parent_digest: bytes | None,
        blocks: Sequence[KVCacheBlock],
    ) -> int:
        """Make full `blocks` findable: one for each group, the null block where a group has none. Returns the
        id of the prefix that ends with them.
        """
        known = self.find(block_hash, parent_id)
        prefix = known or self._make_prefix(block_hash, parent_id)
        is_new = block_hash.digest not in self._by_digest
        for group_id, block in enumerate(blocks):
            if block.prefix is not None:
                self._drop_tail(block)
            if not block.is_null and (is_new or not self._is_stored(block_hash.digest, group_id)):
                self._observer.block_stored(
                    StoredBlock(block_hash.digest, parent_digest, *block_hash[1:], group_id)
                )
        self._attach(prefix, blocks)
        if known is None and prefix.num_groups:
            self._by_digest.setdefault(block_hash.digest, []).append(prefix)
        return prefix.prefix_id

    def publish_tail(
        self, extra_keys: bytes, token_bytes: bytes, parent_id: int, blocks: Sequence[KVCacheBlock]
    ) -> bool:
        """Make the tokens with which `blocks` begin findable, so that they can be copied. The blocks are not
        full. Returns whether they were published.

        They are not published if some group has no block of the tokens, or if as many of the tokens can be
        found already.
        """
        present = [block for block in blocks if not block.is_null]
        num_groups = len(present)
        published = present[0].prefix if present else None  # a shorter tail, or this one
        if published is not None:
            if len(published.block_hash.token_bytes) >= len(token_bytes):
                return False
            for block in present:
                self._drop_tail(block)
        found = self.find_longest_head(parent_id, extra_keys, token_bytes)
        num_found = found[1] if found else 0
        if num_groups == self._num_cached_groups and num_found * TOKEN_BYTES < len(token_bytes):
            tail = BlockHash(NO_DIGEST, token_bytes, extra_keys)
            self._attach(self._make_prefix(tail, parent_id), blocks)
            return True
        return False

    def remove(self, block: KVCacheBlock) -> None:
        """Forget the content of a cached block."""
        prefix = block.prefix
        assert prefix is not None, f"{block} is not cached"
        block.prefix = None
        copies = prefix.blocks[block.group_id]
        copies.remove(block)
        if copies:
            return
        if prefix.num_groups == self._num_cached_groups:
            self._remove_child(prefix)
        prefix.num_groups -= 1
        if not prefix.is_full:
            return
        digest = prefix.block_hash.digest
        if not prefix.num_groups:
            prefixes = self._by_digest[digest]
            prefixes.remove(prefix)
            if not prefixes:
                del self._by_digest[digest]
        if not self._is_stored(digest, block.group_id):
            self._observer.block_removed(digest, block.group_id)

    def clear(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Forget everything. `blocks` are all blocks of the pool."""
        for block in blocks:
            block.prefix = None
        self._by_digest.clear()
        self._children.clear()
        self._observer.all_blocks_cleared()

    def check(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Compare the index with the content of `blocks`, all of the pool. Raises AssertionError."""
        num_blocks: Counter[CachedPrefix] = Counter()
        for block in blocks:
            if block.prefix is not None:
                assert block in block.prefix.blocks[block.group_id], f"{block} is not listed under its prefix"
                num_blocks[block.prefix] += 1
        num_children = 0
        for prefix, expected in num_blocks.items():
            assert sum(map(len, prefix.blocks)) == expected, "a prefix lists blocks that do not hold it"
            assert prefix.num_groups == sum(map(bool, prefix.blocks)), "a prefix miscounts its groups"
            findable = prefix in self._by_digest.get(prefix.block_hash.digest, ())
            assert findable == prefix.is_full, "a prefix is cached but cannot be found"
            if prefix.num_groups == self._num_cached_groups:
                assert prefix in self._children.get(prefix.parent_id, ()), (
                    "a prefix is not among its siblings"
                )
                num_children += 1
        assert len(self) == sum(prefix.is_full for prefix in num_blocks), "prefixes without blocks are found"
        assert sum(map(len, self._children.values())) == num_children, "siblings without blocks are found"
        for siblings in self._children.values():
            contents = [prefix.content for prefix in siblings]
            assert all(map(lt, contents, contents[1:])), "siblings are out of order"

    def _make_prefix(self, block_hash: BlockHash, parent_id: int) -> CachedPrefix:
        self._last_id += 1
        return CachedPrefix(block_hash, self._last_id, parent_id, self.num_groups)

    def _drop_tail(self, block: KVCacheBlock) -> None:
        """Forget the tail with which a block was published before more of its tokens were computed."""
        assert block.prefix is None or not block.prefix.is_full, f"{block} is published twice"
        self.remove(block)

    def _attach(self, prefix: CachedPrefix, blocks: Sequence[KVCacheBlock]) -> None:
        """Publish `blocks` as the last block of `prefix`, one for each group, or the null block."""
        was_complete = prefix.num_groups == self._num_cached_groups
        for group_id, block in enumerate(blocks):
            if block.is_null:
                continue
            block.prefix, block.group_id = prefix, group_id
            prefix.num_groups += not prefix.blocks[group_id]
            prefix.blocks[group_id].append(block)
        if prefix.num_groups == self._num_cached_groups and not was_complete:
            siblings = self._children.setdefault(prefix.parent_id, [])
            insort(siblings, prefix, key=lambda prefix: prefix.content)

    def _remove_child(self, prefix: CachedPrefix) -> None:
        siblings = self._children[prefix.parent_id]
        position = bisect_left(siblings, prefix.content, key=lambda prefix: prefix.content)
        assert siblings[position] is prefix, "two prefixes with one parent have the same content"
        del siblings[position]
        if not siblings:
            del self._children[prefix.parent_id]

    def _is_stored(self, digest: bytes, group_id: int) -> bool:
        """Whether the group has a block with this digest."""
        return any(prefix.blocks[group_id] for prefix in self._by_digest.get(digest, ()))


def _num_common_tokens(one: bytes, other: bytes) -> int:
    """How many leading tokens two encoded sequences share."""
    size = min(len(one), len(other))
    difference = int.from_bytes(one[:size], "big") ^ int.from_bytes(other[:size], "big")
    num_common_bytes = size - (difference.bit_length() + 7) // 8
    return num_common_bytes // TOKEN_BYTES
