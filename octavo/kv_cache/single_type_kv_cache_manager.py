"""One manager for each KV cache group: which blocks a request needs, by the rules of the group's kind.

Kinds differ in the answers to three questions: what of a sequence is in the prefix cache, how many blocks it
needs, and which of them it needs no longer. The first and the last are two sides of one: a prefix is cached
for a group if all blocks are that tokens after it can still see.

Managers are rules and keep nothing. What a request holds is in its `RequestBlocks`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from octavo.kv_cache.block import CachedPrefix, KVCacheBlock
from octavo.types.kv import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    RecurrentStateSpec,
    SlidingWindowSpec,
)

Spec = TypeVar("Spec", bound=KVCacheSpec)


class SingleTypeKVCacheManager(ABC, Generic[Spec]):
    """The rules of one group. Tables are indexed by blocks of tokens, unless a kind says otherwise."""

    follows_tokens = True  # its tables grow as tokens come
    keeps_all_blocks = False  # nothing is ever out of sight
    holds_states = False  # a block is a state, of use only as a whole and only to go on from where it ends

    def __init__(self, spec: Spec, group_id: int, null_block: KVCacheBlock) -> None:
        self.spec = spec
        self.block_size = spec.block_size
        self.group_id = group_id
        self.null_block = null_block

    @abstractmethod
    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        """Leading blocks that no token after the computed ones can see."""

    def find_longest_cache_hit(self, prefixes: Sequence[CachedPrefix], max_blocks: int) -> int:
        """Blocks of the longest beginning, of at most `max_blocks`, of which the group has all that later
        tokens see. Pure.

        `prefixes` are those of the sequence, block by block; one without blocks where nobody has any.
        """
        stop = max_blocks
        start = stop  # blocks start to stop are there, and follow one another
        num_skipped = self.num_skipped_blocks(stop * self.block_size)
        following: CachedPrefix | None = None  # the prefix at `start`, if that is before `stop`
        while start > num_skipped:
            prefix = prefixes[start - 1]
            is_cached = bool(prefix.blocks[self.group_id])
            if is_cached and (following is None or following.parent_id == prefix.prefix_id):
                start -= 1
                following = prefix
                continue
            if not is_cached:
                start -= 1
            stop, following = start, None
            num_skipped = self.num_skipped_blocks(stop * self.block_size)
        return stop

    def get_cached_blocks(self, prefixes: Sequence[CachedPrefix], num_tokens: int) -> list[KVCacheBlock]:
        """A table that begins with the group's blocks of `prefixes`, for a request that has computed
        `num_tokens` tokens.
        """
        num_skipped = min(self.num_skipped_blocks(num_tokens), len(prefixes))
        table = [self.null_block] * num_skipped
        table += [prefix.blocks[self.group_id][0] for prefix in prefixes[num_skipped:]]
        return table

    def num_entries(self, num_tokens: int, num_encoder_tokens: int) -> int:
        """Length of the table of a request with `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def num_blocks_for(self, num_tokens: int, num_encoder_tokens: int, max_chunk: int) -> int:
        """Blocks the request holds at once, at most, on its way to `num_tokens` tokens."""
        return self.spec.num_blocks_for(num_tokens, max_chunk)

    def num_new_blocks(self, num_new_entries: int) -> int:
        """Of new entries at the end of a table, those (the last) that need a block."""
        return num_new_entries

    def get_block_to_cache(
        self, table: Sequence[KVCacheBlock], index: int, num_computed_tokens: int
    ) -> KVCacheBlock:
        """What holds the content of the full block `index`; the null block if nothing does (any more)."""
        return table[index]

    def get_num_common_prefix_blocks(
        self, table: Sequence[KVCacheBlock], num_running: int, num_copies: Mapping[int, int]
    ) -> int:
        """Leading blocks of the table that all `num_running` running requests hold.

        `num_copies`: by block id, the references that are no request's.
        """
        return 0


class FullAttentionManager(SingleTypeKVCacheManager[FullAttentionSpec]):
    """Every token sees its whole context: all blocks are needed, to the end."""

    keeps_all_blocks = True

    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        """None."""
        return 0

    def find_longest_cache_hit(self, prefixes: Sequence[CachedPrefix], max_blocks: int) -> int:
        """Up to the first block that is missing."""
        for index in range(max_blocks):
            if not prefixes[index].blocks[self.group_id]:
                return index
        return max_blocks

    def get_num_common_prefix_blocks(
        self, table: Sequence[KVCacheBlock], num_running: int, num_copies: Mapping[int, int]
    ) -> int:
        """Those with a reference from each."""
        if num_running == 1:
            return 0  # there is nobody to share with, and counting would take longer with every block
        count = 0
        for block in table:
            if block.ref_cnt - num_copies.get(block.block_id, 0) != num_running:
                break
            count += 1
        return count


class SlidingWindowManager(SingleTypeKVCacheManager[SlidingWindowSpec]):
    """A token sees the last `window` tokens, itself included."""

    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        """Those that end before what the next token sees."""
        return max(num_computed_tokens + 1 - self.spec.window, 0) // self.block_size


class ChunkedLocalAttentionManager(SingleTypeKVCacheManager[ChunkedLocalAttentionSpec]):
    """A token sees its own chunk."""

    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        """Those that end before the chunk of the next token begins."""
        chunk_size = self.spec.chunk_size
        return num_computed_tokens // chunk_size * chunk_size // self.block_size


class RecurrentStateManager(SingleTypeKVCacheManager[RecurrentStateSpec]):
    """A step begins with the state that the last one left, in the block of the last computed token."""

    holds_states = True

    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        """All before the last computed token's."""
        return max(num_computed_tokens - 1, 0) // self.block_size

    def num_new_blocks(self, num_new_entries: int) -> int:
        """A step leaves one state, however many blocks it spans."""
        return min(num_new_entries, 1)

    def get_block_to_cache(
        self, table: Sequence[KVCacheBlock], index: int, num_computed_tokens: int
    ) -> KVCacheBlock:
        """Only a step that ended with the block has left the state at its end."""
        is_at_end = (index + 1) * self.block_size == num_computed_tokens
        return table[index] if is_at_end else self.null_block


class CrossAttentionManager(SingleTypeKVCacheManager[CrossAttentionSpec]):
    """Tokens see what an encoder made of another input, all of it, which no other request shares."""

    follows_tokens = False

    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        """None."""
        return 0

    def find_longest_cache_hit(self, prefixes: Sequence[CachedPrefix], max_blocks: int) -> int:
        """All: whoever looks for a hit has no other input, and needs no blocks here."""
        return max_blocks

    def get_cached_blocks(self, prefixes: Sequence[CachedPrefix], num_tokens: int) -> list[KVCacheBlock]:
        """None."""
        return []

    def num_entries(self, num_tokens: int, num_encoder_tokens: int) -> int:
        """Enough for the other input, from the start."""
        return -(-num_encoder_tokens // self.block_size)

    def num_blocks_for(self, num_tokens: int, num_encoder_tokens: int, max_chunk: int) -> int:
        """As many as entries."""
        return self.num_entries(num_tokens, num_encoder_tokens)

    def get_block_to_cache(
        self, table: Sequence[KVCacheBlock], index: int, num_computed_tokens: int
    ) -> KVCacheBlock:
        """None: the table has nothing to do with tokens."""
        return self.null_block


# The kinds of KV cache: a spec's type → the manager that follows its rules.
MANAGERS: dict[type[KVCacheSpec], type[SingleTypeKVCacheManager[Any]]] = {
    FullAttentionSpec: FullAttentionManager,
    SlidingWindowSpec: SlidingWindowManager,
    ChunkedLocalAttentionSpec: ChunkedLocalAttentionManager,
    RecurrentStateSpec: RecurrentStateManager,
    CrossAttentionSpec: CrossAttentionManager,
}
