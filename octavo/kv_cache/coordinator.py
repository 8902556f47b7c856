"""`KVCacheCoordinator`: the groups of one cache, acting as one.

A request has blocks in every group or in none; a prefix counts as cached only as far as all groups have it.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.kv_cache.block import KVCacheBlock
from octavo.kv_cache.block_pool import BlockPool
from octavo.kv_cache.hashing import BlockHash
from octavo.kv_cache.single_type_kv_cache_manager import FullAttentionManager, SingleTypeKVCacheManager
from octavo.types.kv import FullAttentionSpec, KVCacheConfig

# The kinds of KV cache: a spec's type → the manager that follows its rules.
MANAGERS: dict[type, type[SingleTypeKVCacheManager]] = {FullAttentionSpec: FullAttentionManager}


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

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        """Per group the cached blocks of the longest beginning that all groups have, and its length in
        tokens. Pure.

        Each group may shorten the candidate, which the others must then confirm: repeated until all agree.
        """
        length = max_length
        while True:
            hits = tuple(manager.find_longest_cache_hit(block_hashes, length) for manager in self.managers)
            agreed = min(len(blocks) for blocks in hits) * self.block_size
            if all(len(blocks) * self.block_size == agreed for blocks in hits):
                return hits, agreed
            length = agreed
