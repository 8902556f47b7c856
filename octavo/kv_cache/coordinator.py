"""`KVCacheCoordinator`: the groups of one cache, acting as one.

A request has blocks in every group or in none; a prefix counts as cached only as far as all groups have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from octavo.kv_cache.block import KVCacheBlock
from octavo.kv_cache.block_pool import BlockPool
from octavo.kv_cache.hashing import BlockHash
from octavo.kv_cache.single_type_kv_cache_manager import FullAttentionManager, SingleTypeKVCacheManager
from octavo.types.kv import FullAttentionSpec, KVCacheConfig
from octavo.types.steps import BlockIds

# The kinds of KV cache: a spec's type → the manager that follows its rules.
MANAGERS: dict[type, type[SingleTypeKVCacheManager]] = {FullAttentionSpec: FullAttentionManager}


class CacheHit(NamedTuple):
    """A beginning of a sequence found in the prefix cache. Valid until any block changes hands."""

    blocks: tuple[list[KVCacheBlock], ...]  # per group
    num_tokens: int


class KVCacheCoordinator:
    """Asks each group's manager and combines the answers. All groups share a pool and a block size."""

    def __init__(self, config: KVCacheConfig, pool: BlockPool) -> None:
        self.managers = [
            MANAGERS[type(group.spec)](group.spec, pool, group_id)
            for group_id, group in enumerate(config.groups)
        ]
        block_sizes = {group.spec.block_size for group in config.groups}
        assert len(block_sizes) == 1, f"groups of one cache have one block size, not {block_sizes}"
        self.block_size = block_sizes.pop()

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> CacheHit:
        """The longest cached beginning that all groups have, of at most `max_length` tokens. Pure.

        Each group may shorten the candidate, which the others must then confirm: repeated until all agree.
        """
        length = max_length
        while True:
            hits = tuple(manager.find_longest_cache_hit(block_hashes, length) for manager in self.managers)
            agreed = min(len(blocks) for blocks in hits) * self.block_size
            if all(len(blocks) * self.block_size == agreed for blocks in hits):
                return CacheHit(hits, agreed)
            length = agreed

    def num_missing_blocks(self, request_id: str, num_tokens: int) -> int:
        """Blocks the request lacks to hold `num_tokens` tokens."""
        total = 0
        for manager in self.managers:  # asked for every request in every step: a generator costs twice this
            total += manager.num_missing_blocks(request_id, num_tokens)
        return total

    def adopt_computed_blocks(self, request_id: str, hit: CacheHit) -> None:
        """Begin the request's tables with the hit's blocks, before any group allocates and evicts."""
        for manager, blocks in zip(self.managers, hit.blocks, strict=True):
            manager.adopt_computed_blocks(request_id, blocks)

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> BlockIds:
        """Extend the request's tables to hold `num_tokens` tokens; per group the ids of what was added."""
        return tuple(
            manager.allocate_new_blocks(request_id, manager.num_missing_blocks(request_id, num_tokens))
            for manager in self.managers
        )

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        """Give back the blocks that no later token of the request can see."""
        for manager in self.managers:
            manager.remove_skipped_blocks(request_id, num_computed_tokens)

    def num_cached_blocks(self, request_id: str) -> int:
        """Leading blocks of the request that every group has published."""
        return min([manager.num_cached_blocks[request_id] for manager in self.managers])

    def cache_blocks(self, request_id: str, block_hashes: Sequence[BlockHash], num_full_blocks: int) -> None:
        """Publish the request's first `num_full_blocks` blocks, which are full and computed."""
        for manager in self.managers:
            manager.cache_blocks(request_id, block_hashes, num_full_blocks)

    def free(self, request_id: str) -> None:
        """Give back everything the request holds."""
        for manager in self.managers:
            manager.free(request_id)

    def get_block_ids(self, request_id: str) -> BlockIds:
        """Per group the ids of all blocks the request holds."""
        return tuple(
            [block.block_id for block in manager.req_to_blocks[request_id]] for manager in self.managers
        )

    def get_num_common_prefix_blocks(self, request_id: str, num_running: int) -> list[int]:
        """Per group the leading blocks of the request that all `num_running` running requests hold."""
        return [manager.get_num_common_prefix_blocks(request_id, num_running) for manager in self.managers]

    def get_holders(self) -> set[str]:
        """The ids of the requests that hold blocks."""
        return set().union(*(manager.req_to_blocks for manager in self.managers))

    def held_blocks(self) -> Iterator[KVCacheBlock]:
        """Every block in any request's table, as often as it is in one."""
        for manager in self.managers:
            for table in manager.req_to_blocks.values():
                yield from table
