"""One manager for each KV cache group: which blocks each request holds, by the rules of the group's kind of
attention.

Kinds differ in the answers to three questions: what of a sequence is in the prefix cache, how many blocks a
sequence of some length needs (the spec's answer, by which the cache is sized as well), and which blocks a
request needs no longer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import islice

from octavo.kv_cache.block import KVCacheBlock
from octavo.kv_cache.block_pool import BlockPool
from octavo.kv_cache.hashing import BlockHash
from octavo.types.kv import FullAttentionSpec


class SingleTypeKVCacheManager(ABC):
    """The block tables of one group. Mutates the pool; never decides who gets blocks."""

    def __init__(self, spec: FullAttentionSpec, pool: BlockPool, group_id: int) -> None:
        self.spec = spec
        self.block_size = spec.block_size
        self.pool = pool
        self.group_id = group_id
        self.req_to_blocks: dict[str, list[KVCacheBlock]] = {}
        self.num_cached_blocks: dict[str, int] = {}  # leading blocks of each request that are published

    @abstractmethod
    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_length: int
    ) -> list[KVCacheBlock]:
        """Cached blocks for the longest beginning of the sequence, of at most `max_length` tokens. Pure."""

    @abstractmethod
    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        """Give back the blocks that no later token of the request can see."""

    def num_missing_blocks(self, request_id: str, num_tokens: int) -> int:
        """Blocks the request lacks to hold `num_tokens` tokens."""
        return max(
            self.spec.num_blocks_for(num_tokens, num_tokens) - len(self.req_to_blocks.get(request_id, ())), 0
        )

    def adopt_computed_blocks(self, request_id: str, blocks: list[KVCacheBlock]) -> None:
        """Begin the request's table with cached blocks, taking a reference to each."""
        assert request_id not in self.req_to_blocks, f"{request_id} holds blocks already"
        self.pool.touch(blocks)
        self.req_to_blocks[request_id] = list(blocks)
        self.num_cached_blocks[request_id] = len(blocks)

    def allocate_new_blocks(self, request_id: str, count: int) -> list[int]:
        """Extend the request's table by `count` blocks, which the caller knows are free; their ids."""
        blocks = self.pool.get_new_blocks(count)
        self.req_to_blocks[request_id].extend(blocks)
        return [block.block_id for block in blocks]

    def cache_blocks(self, request_id: str, block_hashes: Sequence[BlockHash], num_full_blocks: int) -> None:
        """Publish the request's first `num_full_blocks` blocks, which are full and computed."""
        start = self.num_cached_blocks[request_id]
        self.pool.cache_full_blocks(
            self.req_to_blocks[request_id], block_hashes, start, num_full_blocks, self.group_id
        )
        self.num_cached_blocks[request_id] = num_full_blocks

    def free(self, request_id: str) -> None:
        """Give back all blocks of the request, last first: beginnings of sequences stay cached longest."""
        self.pool.free_blocks(reversed(self.req_to_blocks.pop(request_id, [])))
        self.num_cached_blocks.pop(request_id, None)

    def get_num_common_prefix_blocks(self, request_id: str, num_running: int) -> int:
        """Leading blocks of the request that all `num_running` running requests hold."""
        if num_running == 1:
            return 0  # there is nobody to share with, and counting would take longer with every block
        count = 0
        for block in self.req_to_blocks.get(request_id, ()):
            if block.ref_cnt != num_running:
                break
            count += 1
        return count


class FullAttentionManager(SingleTypeKVCacheManager):
    """Every token sees its whole context: all blocks are needed, to the end."""

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_length: int
    ) -> list[KVCacheBlock]:
        """The cached blocks from the start of the sequence up to the first one that is missing."""
        blocks: list[KVCacheBlock] = []
        prefix_id = 0
        for block_hash in islice(block_hashes, max_length // self.block_size):
            block = self.pool.get_cached_block(block_hash, prefix_id, self.group_id)
            if block is None:
                break
            blocks.append(block)
            prefix_id = block.prefix_id
        return blocks

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        """Nothing: no block is ever out of sight."""
