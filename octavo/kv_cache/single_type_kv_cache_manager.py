"""One manager for each kind of KV cache in a model: which blocks a request needs, by the kind's rules.

Kinds differ in three answers: how much of a sequence is cached, how many blocks a sequence needs, and which
blocks it no longer needs. The first follows from the last: a prefix is cached if all blocks are cached that
the tokens after it can see.

Managers are rules without state. The blocks of a request are in its `RequestBlocks`.
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
    """The rules of all groups with one spec. Entry i of a table is for the i-th block of tokens, unless a
    kind says otherwise.
    """

    follows_tokens = True  # its tables grow with the tokens
    keeps_all_blocks = False  # every token sees all tokens before it
    holds_states = False  # a block is a recurrent state: it continues a sequence only from its end

    def __init__(self, spec: Spec, group_ids: tuple[int, ...]) -> None:
        self.spec = spec
        self.block_size = spec.block_size
        self.group_ids = group_ids

    @abstractmethod
    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        """Leading blocks that no token after the computed ones can see."""

    def find_longest_cache_hit(self, prefixes: Sequence[CachedPrefix], max_blocks: int) -> int:
        """How many blocks the longest cached beginning has, at most `max_blocks`. Pure.

        A beginning is cached if every block is cached that tokens after it can see. `prefixes` has one entry
        for each block of the sequence, without blocks where none is cached.
        """
        stop = max_blocks
        start = stop  # blocks start to stop are cached, in one sequence
        num_skipped = self.num_skipped_blocks(stop * self.block_size)
        following: CachedPrefix | None = None  # the prefix at index `start`; None if start == stop
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
        """The most blocks that a request has at once on its way to `num_tokens` tokens."""
        return self.spec.num_blocks_for(num_tokens, max_chunk)

    def num_new_blocks(self, num_new_entries: int) -> int:
        """How many of the new entries at the end of a table need a block. They are the last ones."""
        return num_new_entries

    def can_cache(self, index: int, num_computed_tokens: int) -> bool:
        """Whether the block of entry `index`, if there is one, can be published now as a full block."""
        return True

    def _is_cached(self, prefix: CachedPrefix) -> bool:
        return all(map(prefix.blocks.__getitem__, self.group_ids))


class FullAttentionManager(SingleTypeKVCacheManager[FullAttentionSpec | LatentAttentionSpec]):
    """Every token sees its whole context, so a request needs all its blocks to the end."""

    keeps_all_blocks = True

    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        return 0

    def find_longest_cache_hit(self, prefixes: Sequence[CachedPrefix], max_blocks: int) -> int:
        for index in range(max_blocks):
            if not self._is_cached(prefixes[index]):
                return index
        return max_blocks


class SlidingWindowManager(SingleTypeKVCacheManager[SlidingWindowSpec]):
    """A token sees the last `window` tokens, itself included."""

    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        return max(num_computed_tokens + 1 - self.spec.window, 0) // self.block_size


class ChunkedLocalAttentionManager(SingleTypeKVCacheManager[ChunkedLocalAttentionSpec]):
    """A token sees its own chunk."""

    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        chunk_size = self.spec.chunk_size
        return num_computed_tokens // chunk_size * chunk_size // self.block_size


class RecurrentStateManager(SingleTypeKVCacheManager[RecurrentStateSpec]):
    """A step starts from the state that the step before left in the block of the last computed token."""

    holds_states = True

    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        return max(num_computed_tokens - 1, 0) // self.block_size

    def num_new_blocks(self, num_new_entries: int) -> int:
        return min(num_new_entries, 1)  # a step leaves one state, however many blocks its tokens span

    def can_cache(self, index: int, num_computed_tokens: int) -> bool:
        # Only a step that ends with the block leaves the state at the block's end.
        return (index + 1) * self.block_size == num_computed_tokens


class CrossAttentionManager(SingleTypeKVCacheManager[CrossAttentionSpec]):
    """Tokens see the whole KV of another input, which an encoder has read. Requests never share it."""

    follows_tokens = False

    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        return 0

    def find_longest_cache_hit(self, prefixes: Sequence[CachedPrefix], max_blocks: int) -> int:
        return max_blocks  # a request that looks for a hit has no other input, and needs no blocks here

    def num_entries(self, num_tokens: int, num_encoder_tokens: int) -> int:
        return -(-num_encoder_tokens // self.block_size)

    def num_blocks_for(self, num_tokens: int, num_encoder_tokens: int, max_chunk: int) -> int:
        return self.num_entries(num_tokens, num_encoder_tokens)

    def can_cache(self, index: int, num_computed_tokens: int) -> bool:
        return False  # the entries do not stand for tokens


# The kinds of KV cache: a spec's type → the manager that follows its rules.
MANAGERS: dict[type[KVCacheSpec], type[SingleTypeKVCacheManager[Any]]] = {
    FullAttentionSpec: FullAttentionManager,
    LatentAttentionSpec: FullAttentionManager,
    SlidingWindowSpec: SlidingWindowManager,
    ChunkedLocalAttentionSpec: ChunkedLocalAttentionManager,
    RecurrentStateSpec: RecurrentStateManager,
    CrossAttentionSpec: CrossAttentionManager,
}
