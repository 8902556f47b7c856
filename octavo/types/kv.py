"""The layout of the KV cache: a spec for each layer, groups of layers, and one pool of equal pages.

A block id stands for one page in each layer of a group. Any group can take any block, so all groups share one
pool, and its division among the groups follows the sequences.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

UNBOUNDED = 2**31 - 1  # tokens: longer than any sequence


@dataclass(frozen=True, slots=True)
class KVCacheSpec(ABC):
    """The data that one layer keeps for a sequence, in blocks of `block_size` tokens."""

    block_size: int  # tokens in a block

    @property
    @abstractmethod
    def page_bytes(self) -> int:
        """Bytes of one block in one layer."""

    @abstractmethod
    def num_blocks_for(self, num_tokens: int, max_chunk: int) -> int:
        """Return the most blocks that a sequence holds at once while it grows to `num_tokens` tokens.

        A step computes at most `max_chunk` of its tokens.
        """


@dataclass(frozen=True, slots=True)
class AttentionSpec(KVCacheSpec):
    """A layer that keeps the K and V of tokens."""

    num_kv_heads: int
    head_size: int
    head_bytes: int  # bytes of one token's K and V in one head, with scales

    @property
    def page_bytes(self) -> int:
        return self.block_size * self.num_kv_heads * self.head_bytes

    def num_blocks_for(self, num_tokens: int, max_chunk: int) -> int:
        return -(-num_tokens // self.block_size)

    def _num_blocks_for_span(self, num_tokens: int, span: int) -> int:
        """Return the most blocks that `span` consecutive tokens touch, in a sequence of `num_tokens`."""
        return min(-(-num_tokens // self.block_size), -(-(span - 1) // self.block_size) + 1)


@dataclass(frozen=True, slots=True)
class FullAttentionSpec(AttentionSpec):
    """A layer that attends to its whole context."""


@dataclass(frozen=True, slots=True)
class SlidingWindowSpec(AttentionSpec):
    """A layer whose tokens attend to the last `window` tokens, themselves included."""

    window: int

    def num_blocks_for(self, num_tokens: int, max_chunk: int) -> int:
        return self._num_blocks_for_span(num_tokens, self.window - 1 + max_chunk)


@dataclass(frozen=True, slots=True)
class ChunkedLocalAttentionSpec(AttentionSpec):
    """A layer whose tokens attend to their own chunk: positions from the last multiple of `chunk_size`."""

    chunk_size: int

    def num_blocks_for(self, num_tokens: int, max_chunk: int) -> int:
        return self._num_blocks_for_span(num_tokens, self.chunk_size - 1 + max_chunk)


@dataclass(frozen=True, slots=True)
class CrossAttentionSpec(AttentionSpec):
    """A layer whose tokens attend to the KV of an encoder's input. This KV does not grow."""

    max_encoder_tokens: int

    def num_blocks_for(self, num_tokens: int, max_chunk: int) -> int:
        return -(-self.max_encoder_tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class LatentAttentionSpec(KVCacheSpec):
    """A layer that attends to its whole context and keeps one vector for each token.

    The vector has `latent_size` features and `rope_size` rotated ones. The keys and values of all heads are
    computed from it.
    """

    latent_size: int
    rope_size: int
    token_bytes: int  # bytes of one token's vector, with all that is stored beside it

    @property
    def page_bytes(self) -> int:
        return self.block_size * self.token_bytes

    def num_blocks_for(self, num_tokens: int, max_chunk: int) -> int:
        return -(-num_tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class RecurrentStateSpec(KVCacheSpec):
    """A layer that keeps a state of fixed size instead of the KV of all tokens.

    A block holds the state after the last computed token that lies in it.
    """

    state_bytes: int

    @property
    def page_bytes(self) -> int:
        return self.state_bytes

    def num_blocks_for(self, num_tokens: int, max_chunk: int) -> int:
        return min(-(-num_tokens // self.block_size), 2)  # the states before and after a step


@dataclass(frozen=True, slots=True)
class KVCacheGroup:
    """Layers with equal specs. They share block ids, so a request has one block table for each group."""

    spec: KVCacheSpec
    layers: tuple[int, ...]  # layer indices; the i-th layer uses the i-th page of each block


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """The whole cache, as planned at start-up. Block 0 is the null block and never holds tokens."""

    num_blocks: int
    groups: tuple[KVCacheGroup, ...]
    # The most tokens of a request that a step computes. It bounds the blocks that a window needs at once.
    max_chunk: int = UNBOUNDED

    @property
    def group_size(self) -> int:
        """Number of layers in the largest group, which is the number of pages that a block id stands for."""
        return max((len(group.layers) for group in self.groups), default=0)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page. All pages have the size of the largest one."""
        return max((group.spec.page_bytes for group in self.groups), default=0)

    @property
    def block_bytes(self) -> int:
        """Bytes that a block id stands for, in any group."""
        return self.group_size * self.page_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole cache."""
        return self.num_blocks * self.block_bytes

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return the most blocks that one sequence holds at once while it grows to `num_tokens` tokens."""
        return sum(group.spec.num_blocks_for(num_tokens, self.max_chunk) for group in self.groups)

    @property
    def max_num_tokens(self) -> int:
        """Length of the longest sequence that fits the cache; `UNBOUNDED` if any length fits."""
        available = max(self.num_blocks - 1, 0)
        low, high = 0, UNBOUNDED  # num_blocks_for never falls as sequences grow
        while low < high:
            middle = (low + high + 1) // 2
            if self.num_blocks_for(middle) <= available:
                low = middle
            else:
                high = middle - 1
        return low
