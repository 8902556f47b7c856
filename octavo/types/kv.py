"""How the KV cache is laid out: what each layer keeps, layers in groups, groups in one pool of equal pages.

A block id stands for one page in each layer of a group. A block serves whichever group takes it. So all
groups share one pool, and memory goes where the sequences need it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

UNBOUNDED = 2**31 - 1  # tokens: longer than any sequence


@dataclass(frozen=True, slots=True)
class KVCacheSpec(ABC):
    """What one layer keeps of a sequence, in blocks of `block_size` tokens."""

    block_size: int  # tokens a block stands for

    @property
    @abstractmethod
    def page_bytes(self) -> int:
        """Bytes one block of one layer takes."""

    @abstractmethod
    def num_blocks_for(self, num_tokens: int, max_chunk: int) -> int:
        """The most blocks that a sequence has at once on its way to `num_tokens` tokens, if a step runs up to
        `max_chunk` of them.
        """


@dataclass(frozen=True, slots=True)
class AttentionSpec(KVCacheSpec):
    """A layer that keeps K and V of tokens."""

    num_kv_heads: int
    head_size: int
    head_bytes: int  # bytes of one token's K and V in one head, with scales and the like

    @property
    def page_bytes(self) -> int:
        return self.block_size * self.num_kv_heads * self.head_bytes

    def num_blocks_for(self, num_tokens: int, max_chunk: int) -> int:
        return -(-num_tokens // self.block_size)

    def _num_blocks_for_span(self, num_tokens: int, span: int) -> int:
        """The most blocks that `span` consecutive tokens lie in, in a sequence of `num_tokens` tokens."""
        return min(-(-num_tokens // self.block_size), -(-(span - 1) // self.block_size) + 1)


@dataclass(frozen=True, slots=True)
class FullAttentionSpec(AttentionSpec):
    """A layer that attends to its whole context."""


@dataclass(frozen=True, slots=True)
class SlidingWindowSpec(AttentionSpec):
    """A layer whose tokens see the last `window` tokens, themselves included."""

    window: int

    def num_blocks_for(self, num_tokens: int, max_chunk: int) -> int:
        return self._num_blocks_for_span(num_tokens, self.window - 1 + max_chunk)


@dataclass(frozen=True, slots=True)
class ChunkedLocalAttentionSpec(AttentionSpec):
    """A layer whose tokens see those of their own chunk: positions from the last multiple of `chunk_size`."""

    chunk_size: int

    def num_blocks_for(self, num_tokens: int, max_chunk: int) -> int:
        return self._num_blocks_for_span(num_tokens, self.chunk_size - 1 + max_chunk)


@dataclass(frozen=True, slots=True)
class CrossAttentionSpec(AttentionSpec):
    """A layer whose tokens see the KV of another input, which an encoder has read. It does not grow."""

    max_encoder_tokens: int

    def num_blocks_for(self, num_tokens: int, max_chunk: int) -> int:
        return -(-self.max_encoder_tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class LatentAttentionSpec(KVCacheSpec):
    """A layer that attends to its whole context and keeps one vector of each token, from which the keys and
    values of all heads are computed: `latent_size` features, and `rope_size` rotated ones.
    """

    latent_size: int
    rope_size: int
    token_bytes: int  # bytes of one token's vector, whatever else it needs included

    @property
    def page_bytes(self) -> int:
        """The vectors of `block_size` tokens."""
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
    """Layers with equal specs: they share block ids, so a request has one block table for each group."""

    spec: KVCacheSpec
    layers: tuple[int, ...]  # layer indices; the i-th layer uses the i-th page of each block


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """The whole cache, as planned at start-up. Block 0 is the null block and never holds tokens."""

    num_blocks: int
    groups: tuple[KVCacheGroup, ...]
    # The most tokens of a request that a step runs. It bounds how many blocks a window needs at once.
    max_chunk: int = UNBOUNDED

    @property
    def group_size(self) -> int:
        """Number of layers in the largest group: pages that a block id stands for."""
        return max((len(group.layers) for group in self.groups), default=0)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page: what the layer that needs the most needs."""
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
        """The most blocks that one sequence has at once on its way to `num_tokens` tokens."""
        return sum(group.spec.num_blocks_for(num_tokens, self.max_chunk) for group in self.groups)

    @property
    def max_num_tokens(self) -> int:
        """The longest sequence that fits the cache; `UNBOUNDED` where a longer one takes no more blocks."""
        available = max(self.num_blocks - 1, 0)
        low, high = 0, UNBOUNDED  # num_blocks_for never falls as sequences grow
        while low < high:
            middle = (low + high + 1) // 2
            if self.num_blocks_for(middle) <= available:
                low = middle
            else:
                high = middle - 1
        return low
