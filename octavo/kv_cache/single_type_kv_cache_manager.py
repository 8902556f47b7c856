"""One manager for each kind of KV cache in a model: which blocks a request needs, by the kind's rules.

Kinds differ in the answers to three questions: what of a sequence is in the prefix cache, how many blocks it
needs, and which of them it needs no longer. The first and the last are two sides of one: a prefix is cached
if all blocks are that tokens after it can still see.

Managers are rules and keep nothing. What a request holds is in its `RequestBlocks`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from octavo.kv_cache.block import CachedPrefix
from octavo.types.kv import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    LatentAttentionSpec,
    RecurrentStateSpec,
    SlidingWindowSpec,
)

Spec = TypeVar("Spec", bound=KVCacheSpec)


class SingleTypeKVCacheManager(ABC, Generic[Spec]):
    """The rules of all groups with one spec. Tables are indexed by blocks of tokens, unless a kind says
    otherwise.
    """

    follows_tokens = True  # its tables grow as tokens come
    keeps_all_blocks = False  # nothing is ever out of sight
    holds_states = False  # a block is a state, of use only as a whole and only to go on from where it ends

    def __init__(self, spec: Spec, group_ids: tuple[int, ...]) -> None:
        self.spec = spec
        self.block_size = spec.block_size
        self.group_ids = group_ids

    @abstractmethod
    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        """Leading blocks that no token after the computed ones can see."""

    def find_longest_cache_hit(self, prefixes: Sequence[CachedPrefix], max_blocks: int) -> int:
        """Blocks of the longest beginning, of at most `max_blocks`, of which all that later tokens see is
        cached. Pure.

        `prefixes` are those of the sequence, block by block; one without blocks where nobody has any.
        """
        stop = max_blocks
        start = stop  # blocks start to stop are there, and follow one another
        num_skipped = self.num_skipped_blocks(stop * self.block_size)
        following: CachedPrefix | None = None  # the prefix at `start`, if that is before `stop`
        while start > num_skipped:
            prefix = prefixes[start - 1]
            is_cached = self._is_cached(prefix)
            if is_cached and (following is None or following.parent_id == prefix.prefix_id):
                start -= 1
                following = prefix
                continue
            if not is_cached:
                start -= 1
            stop, following = start, None
            num_skipped = self.num_skipped_blocks(stop * self.block_size)
        return stop

    def num_entries(self, num_tokens: int, num_encoder_tokens: int) -> int:
        """Length of the table of a request with `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def num_blocks_for(self, num_tokens: int, num_encoder_tokens: int, max_chunk: int) -> int:
        """Blocks the request holds at once, at most, on its way to `num_tokens` tokens."""
        return self.spec.num_blocks_for(num_tokens, max_chunk)

    def num_new_blocks(self, num_new_entries: int) -> int:
        """Of new entries at the end of a table, those (the last) that need a block."""
        return num_new_entries

    def can_cache(self, index: int, num_computed_tokens: int) -> bool:
        """Whether entry `index`, where it has a block, stands for a full block of tokens now."""
        return True

    def _is_cached(self, prefix: CachedPrefix) -> bool:
        return all(map(prefix.blocks.__getitem__, self.group_ids))


class FullAttentionManager(SingleTypeKVCacheManager[FullAttentionSpec | LatentAttentionSpec]):
    """Every token sees its whole context: all blocks are needed, to the end."""

    keeps_all_blocks = True

    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        """None."""
        return 0

    def find_longest_cache_hit(self, prefixes: Sequence[CachedPrefix], max_blocks: int) -> int:
        """Up to the first block that is missing."""
        for index in range(max_blocks):
            if not self._is_cached(prefixes[index]):
                return index
        return max_blocks


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

    def can_cache(self, index: int, num_computed_tokens: int) -> bool:
        """Only if a step ended with the block: then it has left the state at its end."""
        return (index + 1) * self.block_size == num_computed_tokens


class CrossAttentionManager(SingleTypeKVCacheManager[CrossAttentionSpec]):
    """Tokens see what an encoder made of another input, all of it, which no other request shares."""

    follows_tokens = False

    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        """None."""
        return 0

    def find_longest_cache_hit(self, prefixes: Sequence[CachedPrefix], max_blocks: int) -> int:
        """All: whoever looks for a hit has no other input, and needs no blocks here."""
        return max_blocks

    def num_entries(self, num_tokens: int, num_encoder_tokens: int) -> int:
        """Enough for the other input, from the start."""
        return -(-num_encoder_tokens // self.block_size)

    def num_blocks_for(self, num_tokens: int, num_encoder_tokens: int, max_chunk: int) -> int:
        """As many as entries."""
        return self.num_entries(num_tokens, num_encoder_tokens)

    def can_cache(self, index: int, num_computed_tokens: int) -> bool:
        """Never: the table has nothing to do with tokens."""
        return False


# The kinds of KV cache: a spec's type → the manager that follows its rules.
MANAGERS: dict[type[KVCacheSpec], type[SingleTypeKVCacheManager[Any]]] = {
    FullAttentionSpec: FullAttentionManager,
    LatentAttentionSpec: FullAttentionManager,
    SlidingWindowSpec: SlidingWindowManager,
    ChunkedLocalAttentionSpec: ChunkedLocalAttentionManager,
    RecurrentStateSpec: RecurrentStateManager,
    CrossAttentionSpec: CrossAttentionManager,
}
