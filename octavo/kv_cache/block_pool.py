"""`BlockPool`: all blocks of the cache, their reference counts, and the order in which they are reused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from octavo.kv_cache.block import FreeKVCacheBlockQueue, KVCacheBlock
from octavo.kv_cache.prefix_index import PrefixIndex


class BlockPool:
    """Hands out blocks and counts references.

    A block without references is *free*. A free block may still be *cached*: the index finds it by its
    content until it is handed out again.
    """

    def __init__(self, num_blocks: int, index: PrefixIndex) -> None:
        self.blocks = [KVCacheBlock(block_id, is_null=block_id == 0) for block_id in range(num_blocks)]
        self.null_block = self.blocks[0]
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks[1:])
        self.index = index

    @property
    def num_free_blocks(self) -> int:
        """Blocks without references."""
        return self.free_block_queue.num_free_blocks

    @property
    def num_usable_blocks(self) -> int:
        """All blocks that can be handed out: every block except the null block."""
        return len(self.blocks) - 1

    @property
    def usage(self) -> float:
        """Share of the usable blocks that have references, 0 to 1."""
        return 1 - self.num_free_blocks / max(self.num_usable_blocks, 1)

    def get_new_blocks(self, count: int) -> list[KVCacheBlock]:
        """Take `count` free blocks, with one reference each. Evicts their content. Raises ValueError."""
        blocks = self.free_block_queue.popleft_n(count)
        for block in blocks:
            if block.prefix is not None:
                self.index.remove(block)
            block.ref_cnt = 1
        return blocks

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Add one reference to each of `blocks`. Free ones leave the free queue."""
        for block in blocks:
            if block.is_null:
                continue
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def forget(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Remove the content of `blocks` from the index. Free ones are the first to be reused."""
        for block in blocks:
            if block.prefix is not None:
                self.index.remove(block)
                if block.ref_cnt == 0:
                    self.free_block_queue.remove(block)
                    self.free_block_queue.prepend_n([block])

    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Drop one reference from each of `blocks`, which come in the order in which they should be evicted.

        Of those that become free, cached ones go to the back of the free queue, where the least recently used
        is evicted first. The others go to the front, since their content is of no use.
        """
        cached: list[KVCacheBlock] = []
        uncached: list[KVCacheBlock] = []
        for block in blocks:
            if block.is_null:
                continue
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                (uncached if block.prefix is None else cached).append(block)
        self.free_block_queue.prepend_n(uncached)
        self.free_block_queue.append_n(cached)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content. Returns False, changing nothing, while any block has references."""
        if self.num_free_blocks != self.num_usable_blocks:
            return False
        self.index.clear(self.blocks)
        return True

    def check(self, ref_cnts: Mapping[int, int]) -> None:
        """Compare every block with `ref_cnts` (block id → references expected). Raises AssertionError."""
        free_ids = {block.block_id for block in self.free_block_queue}
        assert len(free_ids) == len(self.free_block_queue), "the free queue's count differs from its length"
        for block in self.blocks[1:]:
            expected = ref_cnts.get(block.block_id, 0)
            assert block.ref_cnt == expected, f"{block} should have {expected} references"
            assert (block.block_id in free_ids) == (expected == 0), (
                f"{block} is wrongly in or out of the free queue"
            )
        assert self.null_block.block_id not in free_ids, "the null block was freed"
        self.index.check(self.blocks)
