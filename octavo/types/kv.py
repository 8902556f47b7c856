"""How the KV cache is laid out: what a layer needs, layers in groups, groups in one pool of blocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FullAttentionSpec:
    """The KV cache of a layer that attends to its whole context."""

    block_size: int  # tokens a block holds
    num_kv_heads: int
    head_size: int
    head_bytes: int  # bytes of one token's K and V in one head, whatever else they need included

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that a sequence of `num_tokens` tokens holds at once, at most."""
        return -(-num_tokens // self.block_size)

    @property
    def page_bytes(self) -> int:
        """Bytes one block of one layer takes: K and V."""
        return self.block_size * self.num_kv_heads * self.head_bytes


@dataclass(frozen=True, slots=True)
class KVCacheGroup:
    """Layers with equal specs: they share block ids, so a request has one block table for each group."""

    spec: FullAttentionSpec
    layers: tuple[int, ...]  # layer indices

    @property
    def block_bytes(self) -> int:
        """Bytes one block id stands for: a page in each layer of the group."""
        return self.spec.page_bytes * len(self.layers)


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """The whole cache, as found at start-up. Block 0 is the null block and holds no request's tokens."""

    num_blocks: int
    groups: tuple[KVCacheGroup, ...]

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that one sequence of `num_tokens` takes."""
        return sum(group.spec.num_blocks_for(num_tokens) for group in self.groups)

    @property
    def max_num_tokens(self) -> int:
        """The longest sequence that the whole cache can hold."""
        return max(self.num_blocks - 1, 0) // len(self.groups) * self.groups[0].spec.block_size

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole cache."""
        return self.num_blocks * sum(group.block_bytes for group in self.groups)
