"""Blocks of two tokens that are published and looked for without any request."""

from __future__ import annotations

from octavo.kv_cache.block import NO_PREFIX, KVCacheBlock
from octavo.kv_cache.block_pool import BlockPool
from octavo.kv_cache.hashing import BlockHash, extend_block_hashes
from octavo.kv_cache.prefix_index import PrefixIndex
from octavo.types.observer import Observer
from tests.kv_cache.driver import a_request


def make_pool(num_blocks: int, num_groups: int = 1, observer: Observer | None = None) -> BlockPool:
    """A pool of a cache whose groups all publish."""
    return BlockPool(num_blocks, PrefixIndex(num_groups, num_groups, observer or Observer()))


def hashes_of(token_ids: list[int]) -> list[BlockHash]:
    """The hashes of blocks of two tokens."""
    request = a_request(token_ids)
    extend_block_hashes(request, len(token_ids), 2)
    return request.block_hashes


def publish_hashes(
    pool: BlockPool, hashes: list[BlockHash], group_ids: tuple[int, ...] = (0,)
) -> list[KVCacheBlock]:
    """New blocks with these hashes, held by one request, group by group for each index."""
    held: list[KVCacheBlock] = []
    parent_id, parent_digest = NO_PREFIX, None
    for block_hash in hashes:
        blocks = [pool.null_block] * pool.index.num_groups
        for group_id in group_ids:
            (blocks[group_id],) = pool.get_new_blocks(1)
        parent_id = pool.index.publish(block_hash, parent_id, parent_digest, blocks)
        parent_digest = block_hash.digest
        held += [blocks[group_id] for group_id in group_ids]
    return held


def publish(pool: BlockPool, token_ids: list[int], group_ids: tuple[int, ...] = (0,)) -> list[KVCacheBlock]:
    """New blocks that hold `token_ids`."""
    return publish_hashes(pool, hashes_of(token_ids), group_ids)


def find(pool: BlockPool, token_ids: list[int], group_id: int = 0) -> list[int]:
    """Ids of the cached blocks that `token_ids` begin with."""
    found, prefix_id = [], NO_PREFIX
    for block_hash in hashes_of(token_ids):
        prefix = pool.index.find(block_hash, prefix_id)
        if prefix is None or not prefix.blocks[group_id]:
            break
        found.append(prefix.blocks[group_id][0].block_id)
        prefix_id = prefix.prefix_id
    return found
