"""`PrefixIndex`: which blocks hold the KV of which beginnings of sequences.

Knows what is cached and tells the observer; knows nothing of who holds a block, or of when one is forgotten.
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
    """Finds prefixes by the digest of their last block, and by what their last block begins with.

    Blocks with equal content can exist side by side (two requests computed the same prompt at once): what a
    request was told of its blocks holds as long as it runs, so neither is replaced.
    """

    def __init__(self, num_groups: int, num_cached_groups: int, observer: Observer) -> None:
        self.num_groups = num_groups
        self._num_cached_groups = num_cached_groups  # those that ever publish a block
        self._observer = observer
        self._by_digest: dict[bytes, list[CachedPrefix]] = {}  # full ones only
        # Parent → those of its children that all groups have a block of, by content.
        self._children: dict[int, list[CachedPrefix]] = {}
        self._last_id = 0

    def __len__(self) -> int:
        """Prefixes that end with a full block."""
        return sum(map(len, self._by_digest.values()))

    def find(self, block_hash: BlockHash, parent_id: int | None) -> CachedPrefix | None:
        """The prefix that this full block makes of that parent, tokens compared; None if there is none. Pure.

        Without a `parent_id` the digest alone vouches for what lies before the block. Of several prefixes the
        latest is taken, whose neighbours are the least likely to be forgotten.
        """
        for prefix in reversed(self._by_digest.get(block_hash.digest, ())):
            if parent_id in (None, prefix.parent_id) and prefix.block_hash == block_hash:
                return prefix
        return None

    def find_longest_head(
        self, parent_id: int, extra_keys: bytes, token_bytes: bytes
    ) -> tuple[CachedPrefix, int] | None:
        """The child of that parent, held by all groups, that shares most leading tokens with `token_bytes`,
        and how many; None if no child shares any. Pure.
        """
        siblings = self._children.get(parent_id, [])
        content = (extra_keys, token_bytes)
        place = bisect_left(siblings, content, key=lambda prefix: prefix.content)
        # In lexicographic order nothing shares more with a content than the two it would stand between.
        nearest = [
            (_num_common_tokens(prefix.block_hash.token_bytes, token_bytes), prefix)
            for prefix in siblings[max(place - 1, 0) : place + 1]
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
        """Make `blocks`, full and computed, findable: one for each group, the null block where it has none.
        Returns the id of the prefix that ends with them.
        """
        known = self.find(block_hash, parent_id)
        prefix = known or self._make_prefix(block_hash, parent_id)
        is_new = block_hash.digest not in self._by_digest
        for group_id, block in enumerate(blocks):
            if not block.is_null and (is_new or not self._is_held(block_hash.digest, group_id)):
                self._observer.block_stored(
                    StoredBlock(block_hash.digest, parent_digest, *block_hash[1:], group_id)
                )
        self._attach(prefix, blocks)
        if known is None and prefix.num_groups:
            self._by_digest.setdefault(block_hash.digest, []).append(prefix)
        return prefix.prefix_id

    def publish_tail(
        self, extra_keys: bytes, token_bytes: bytes, parent_id: int, blocks: Sequence[KVCacheBlock]
    ) -> None:
        """Make the tokens at the beginning of `blocks`, which are not full, findable as a head to copy.

        Unless as much is found already, or some group has no block of them: then the blocks stay what they
        are, the first to be reused.
        """
        num_groups = sum(not block.is_null for block in blocks)
        found = self.find_longest_head(parent_id, extra_keys, token_bytes)
        num_found = found[1] if found else 0
        if num_groups == self._num_cached_groups and num_found * TOKEN_BYTES < len(token_bytes):
            tail = BlockHash(NO_DIGEST, token_bytes, extra_keys)
            self._attach(self._make_prefix(tail, parent_id), blocks)

    def remove(self, block: KVCacheBlock) -> None:
        """Forget what a cached block holds."""
        prefix = block.prefix
        assert prefix is not None, f"{block} is not cached"
        block.prefix = None
        twins = prefix.blocks[block.group_id]
        twins.remove(block)
        if twins:
            return
        if prefix.num_groups == self._num_cached_groups:
            self._remove_child(prefix)
        prefix.num_groups -= 1
        if not prefix.is_full:
            return
        digest = prefix.block_hash.digest
        if not prefix.num_groups:
            alike = self._by_digest[digest]
            alike.remove(prefix)
            if not alike:
                del self._by_digest[digest]
        if not self._is_held(digest, block.group_id):
            self._observer.block_removed(digest, block.group_id)

    def clear(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Forget what all `blocks`, every one there is, hold."""
        for block in blocks:
            block.prefix = None
        self._by_digest.clear()
        self._children.clear()
        self._observer.all_blocks_cleared()

    def check(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Compare everything with what all `blocks` there are say they hold. Raises AssertionError."""
        num_blocks: Counter[CachedPrefix] = Counter()
        for block in blocks:
            if block.prefix is not None:
                assert block in block.prefix.blocks[block.group_id], f"{block} is cached, but not as that"
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

    def _attach(self, prefix: CachedPrefix, blocks: Sequence[KVCacheBlock]) -> None:
        was_complete = prefix.num_groups == self._num_cached_groups
        for group_id, block in enumerate(blocks):
            if block.is_null:
                continue
            assert block.prefix is None, f"{block} is published twice"
            block.prefix, block.group_id = prefix, group_id
            prefix.num_groups += not prefix.blocks[group_id]
            prefix.blocks[group_id].append(block)
        if prefix.num_groups == self._num_cached_groups and not was_complete:
            siblings = self._children.setdefault(prefix.parent_id, [])
            insort(siblings, prefix, key=lambda prefix: prefix.content)

    def _remove_child(self, prefix: CachedPrefix) -> None:
        siblings = self._children[prefix.parent_id]
        place = bisect_left(siblings, prefix.content, key=lambda prefix: prefix.content)
        assert siblings[place] is prefix, "two prefixes with one parent have the same content"
        del siblings[place]
        if not siblings:
            del self._children[prefix.parent_id]

    def _is_held(self, digest: bytes, group_id: int) -> bool:
        """Whether the group has any block with this digest."""
        return any(prefix.blocks[group_id] for prefix in self._by_digest.get(digest, ()))


def _num_common_tokens(one: bytes, other: bytes) -> int:
    """Leading tokens that two encoded sequences share."""
    size = min(len(one), len(other))
    difference = int.from_bytes(one[:size], "big") ^ int.from_bytes(other[:size], "big")
    num_common_bytes = size - (difference.bit_length() + 7) // 8
    return num_common_bytes // TOKEN_BYTES
