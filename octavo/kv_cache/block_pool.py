"""`BlockPool`: all blocks of the cache, who may have them next, and which of them can be found by content."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo.kv_cache.block import FreeKVCacheBlockQueue, KVCacheBlock
from octavo.kv_cache.hashing import BlockHash


class BlockPool:
    """Hands out blocks, counts references, and finds cached blocks by hash.

    A block is *free* when no request holds it; a free block may still be *cached*, until it is handed out
    again. Blocks with equal content can exist side by side (two requests computed the same prompt at once):
    block tables only ever grow, so neither is replaced.
    """

    def __init__(self, num_blocks: int) -> None:
        self.blocks = [KVCacheBlock(block_id, is_null=block_id == 0) for block_id in range(num_blocks)]
        self.null_block = self.blocks[0]
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks[1:])
        # (digest, group) → block id → block
        self._cached: dict[tuple[bytes, int], dict[int, KVCacheBlock]] = {}
        self._last_prefix_id = 0

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no request holds."""
        return self.free_block_queue.num_free_blocks

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that requests can hold at all: every one but the null block."""
        return len(self.blocks) - 1

    @property
    def usage(self) -> float:
        """Share of the usable blocks that requests hold, 0 to 1."""
        return 1 - self.num_free_blocks / max(self.num_usable_blocks, 1)

    def get_new_blocks(self, count: int) -> list[KVCacheBlock]:
        """Take `count` free blocks, one reference each, evicting what they had cached. Raises ValueError."""
        blocks = self.free_block_queue.popleft_n(count)
        for block in blocks:
            if block.block_hash is not None:
                self._evict(block)
            block.ref_cnt = 1
        return blocks

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Add one reference to each of `blocks`, taking free ones out of the free queue."""
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Drop one reference from each of `blocks`, given in the order in which they should be evicted.

        Cached blocks go to the back of the free queue (least recently used first); uncached ones, whose
        content is worth nothing, to its front.
        """
        cached: list[KVCacheBlock] = []
        uncached: list[KVCacheBlock] = []
        for block in blocks:
            if block.is_null:
                continue
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                (uncached if block.block_hash is None else cached).append(block)
        self.free_block_queue.prepend_n(uncached)
        self.free_block_queue.append_n(cached)

    def cache_full_blocks(
        self,
        blocks: Sequence[KVCacheBlock],
        hashes: Sequence[BlockHash],
        start: int,
        stop: int,
        group_id: int,
    ) -> None:
        """Publish `blocks[start:stop]` of one request, computed and hashed as `hashes` of those indices."""
        for index in range(start, stop):
            block = blocks[index]
            assert block.block_hash is None, f"{block} is published twice"
            block.parent_prefix_id = blocks[index - 1].prefix_id if index else 0
            twin = self.get_cached_block(hashes[index], block.parent_prefix_id, group_id)
            if twin is None:
                self._last_prefix_id += 1
            block.prefix_id = twin.prefix_id if twin else self._last_prefix_id
            block.block_hash, block.group_id = hashes[index], group_id
            self._cached.setdefault((hashes[index].digest, group_id), {})[block.block_id] = block

    def get_cached_block(
        self, block_hash: BlockHash, parent_prefix_id: int, group_id: int
    ) -> KVCacheBlock | None:
        """A block with this content after that prefix, tokens compared; None if there is none. Pure."""
        for block in self._cached.get((block_hash.digest, group_id), {}).values():
            if block.parent_prefix_id == parent_prefix_id and block.block_hash == block_hash:
                return block
        return None

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content. Returns False, changing nothing, while any request holds a block."""
        if self.num_free_blocks != self.num_usable_blocks:
            return False
        for block in self.blocks:
            block.forget_content()
        self._cached.clear()
        return True

    def check(self, ref_cnts: dict[int, int]) -> None:
        """Compare every block with `ref_cnts` (block id → references expected). Raises AssertionError."""
        free_ids = {block.block_id for block in self.free_block_queue}
        assert len(free_ids) == len(self.free_block_queue), "the free queue's count differs from its length"
        for block in self.blocks[1:]:
            expected = ref_cnts.get(block.block_id, 0)
            assert block.ref_cnt == expected, f"{block} should have {expected} references"
            assert (block.block_id in free_ids) == (expected == 0), (
                f"{block} is wrongly in or out of the free queue"
            )
            findable = block.block_hash is not None and self._bucket(block).get(block.block_id) is block
            assert findable == (block.block_hash is not None), f"{block} is cached but cannot be found"
        assert self.null_block.block_id not in free_ids, "the null block was freed"
        num_cached = sum(block.block_hash is not None for block in self.blocks)
        assert sum(map(len, self._cached.values())) == num_cached, (
            "the cache finds blocks that are not cached"
        )

    def _bucket(self, block: KVCacheBlock) -> dict[int, KVCacheBlock]:
        assert block.block_hash is not None
        return self._cached.get((block.block_hash.digest, block.group_id), {})

    def _evict(self, block: KVCacheBlock) -> None:
        assert block.block_hash is not None
        twins = self._bucket(block)
        del twins[block.block_id]
        if not twins:
            del self._cached[block.block_hash.digest, block.group_id]
        block.forget_content()
