"""`KVCacheBlock`, `CachedPrefix` (what a block holds) and the queue of free blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from octavo.kv_cache.hashing import NO_DIGEST, BlockHash

NO_PREFIX = 0  # the id of the empty sequence


class KVCacheBlock:
    """A fixed number of consecutive token slots. Mutable. Owned by the `BlockPool`; requests may share it."""

    __slots__ = ("block_id", "group_id", "is_null", "next_free", "prefix", "prev_free", "ref_cnt")

    def __init__(self, block_id: int, is_null: bool = False) -> None:
        self.block_id = block_id
        self.is_null = is_null
        self.ref_cnt = 0  # requests that have it, and copies to be made of it; not counted for the null block
        self.prefix: CachedPrefix | None = None  # its content, while the prefix cache finds it
        self.group_id = 0  # the KV cache group in which it was published
        self.prev_free: KVCacheBlock | None = None
        self.next_free: KVCacheBlock | None = None

    def __repr__(self) -> str:
        return f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt}, cached={self.prefix is not None})"


class CachedPrefix:
    """A beginning of a sequence that ends with one of its blocks, and the blocks that hold this last part.

    The id stands for the exact tokens (and extra keys) from the start. So a walk from parent to child by ids
    compares whole sequences. The parent itself may have been forgotten meanwhile.
    """

    __slots__ = ("block_hash", "blocks", "num_groups", "parent_id", "prefix_id")

    def __init__(self, block_hash: BlockHash, prefix_id: int, parent_id: int, num_groups: int) -> None:
        self.block_hash = block_hash  # of its last block; NO_DIGEST where that block is not full
        self.prefix_id = prefix_id
        self.parent_id = parent_id  # of the prefix that is one block shorter; NO_PREFIX = there is none
        # Per group; several blocks where several requests computed the same tokens.
        self.blocks: tuple[list[KVCacheBlock], ...] = tuple([[] for _ in range(num_groups)])
        self.num_groups = 0  # groups that have a block of this prefix

    def get_block(self, group_id: int) -> KVCacheBlock:
        """The group's block with the most references: to share it costs the least memory."""
        copies = self.blocks[group_id]
        return copies[0] if len(copies) == 1 else max(copies, key=lambda block: block.ref_cnt)

    @property
    def is_full(self) -> bool:
        """Whether its last block is full."""
        return self.block_hash.digest != NO_DIGEST

    @property
    def content(self) -> tuple[bytes, bytes]:
        """Differs among prefixes with the same parent. Sorting by it puts common beginnings side by side."""
        return self.block_hash.extra_keys, self.block_hash.token_bytes


class FreeKVCacheBlockQueue:
    """The free blocks in the order in which they will be reused (and, if cached, evicted): an intrusive
    doubly linked list.

    Unlike a deque it removes a block from the middle in O(1). That happens whenever a free block is hit.
    """

    def __init__(self, blocks: Iterable[KVCacheBlock]) -> None:
        self.num_free_blocks = 0
        # Two sentinels: no operation has to test for an empty end.
        self._head = KVCacheBlock(-1)
        self._tail = KVCacheBlock(-1)
        self._head.next_free = self._tail
        self._tail.prev_free = self._head
        self.append_n(blocks)

    def popleft(self) -> KVCacheBlock:
        """Take the first block. Raises ValueError when the queue is empty."""
        return self.popleft_n(1)[0]

    def popleft_n(self, count: int) -> list[KVCacheBlock]:
        """Take the first `count` blocks. Raises ValueError, taking none, when there are fewer."""
        if count > self.num_free_blocks:
            raise ValueError(f"cannot take {count} free blocks: there are {self.num_free_blocks}")
        taken = []
        block = self._head.next_free
        for _ in range(count):
            assert block is not None
            taken.append(block)
            following = block.next_free
            block.prev_free = block.next_free = None
            block = following
        assert block is not None
        self._head.next_free = block
        block.prev_free = self._head
        self.num_free_blocks -= count
        return taken

    def remove(self, block: KVCacheBlock) -> None:
        """Take `block` out. Raises ValueError when it is not in the queue."""
        before, after = block.prev_free, block.next_free
        if before is None or after is None:
            raise ValueError(f"{block} is not in the free queue")
        before.next_free = after
        after.prev_free = before
        block.prev_free = block.next_free = None
        self.num_free_blocks -= 1

    def append_n(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Put `blocks` at the back, where they are reused last."""
        last = self._tail.prev_free
        assert last is not None
        self._insert(last, blocks, self._tail)

    def prepend_n(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Put `blocks` at the front in their order, where they are reused first."""
        first = self._head.next_free
        assert first is not None
        self._insert(self._head, blocks, first)

    def _insert(self, before: KVCacheBlock, blocks: Iterable[KVCacheBlock], after: KVCacheBlock) -> None:
        for block in blocks:
            before.next_free = block
            block.prev_free = before
            before = block
            self.num_free_blocks += 1
        before.next_free = after
        after.prev_free = before

    def __iter__(self) -> Iterator[KVCacheBlock]:
        """The free blocks in the order of reuse. The queue must not change meanwhile."""
        block = self._head.next_free
        while block is not None and block is not self._tail:
            yield block
            block = block.next_free

    def __len__(self) -> int:
        return self.num_free_blocks
