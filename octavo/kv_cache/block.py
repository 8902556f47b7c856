"""A block, the content that makes it worth keeping, and the queue of blocks that nobody holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from octavo.kv_cache.hashing import NO_DIGEST, BlockHash

NO_PREFIX = 0  # the id of the empty sequence, with which all begin


class KVCacheBlock:
    """A fixed number of token slots in a row. Mutable; owned by the `BlockPool`, shared by its holders."""

    __slots__ = ("block_id", "group_id", "is_null", "next_free", "prefix", "prev_free", "ref_cnt")

    def __init__(self, block_id: int, is_null: bool = False) -> None:
        self.block_id = block_id
        self.is_null = is_null
        self.ref_cnt = 0  # requests that hold it, and copies to be made of it; not kept for the null block
        self.prefix: CachedPrefix | None = None  # set while its content can be found in the prefix cache
        self.group_id = 0  # KV cache group it was published in
        self.prev_free: KVCacheBlock | None = None
        self.next_free: KVCacheBlock | None = None

    def __repr__(self) -> str:
        return f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt}, cached={self.prefix is not None})"


class CachedPrefix:
    """The beginning of a sequence through one of its blocks, and the blocks that hold this last part of it.

    Its id stands for the exact tokens (and extra keys) from the start, so following ids from parent to child
    compares whole sequences. The parent itself may have been forgotten since.
    """

    __slots__ = ("block_hash", "blocks", "num_groups", "parent_id", "prefix_id")

    def __init__(self, block_hash: BlockHash, prefix_id: int, parent_id: int, num_groups: int) -> None:
        self.block_hash = block_hash  # of its last block; no digest where that block is not full
        self.prefix_id = prefix_id
        self.parent_id = parent_id  # of the prefix one block shorter; NO_PREFIX = it is the first block
        # Per group; several where several requests computed the same at once.
        self.blocks: tuple[list[KVCacheBlock], ...] = tuple([[] for _ in range(num_groups)])
        self.num_groups = 0  # that have a block of it

    def get_block(self, group_id: int) -> KVCacheBlock:
        """The one of the group's blocks that most hold: it costs least to hold that too."""
        twins = self.blocks[group_id]
        return twins[0] if len(twins) == 1 else max(twins, key=lambda block: block.ref_cnt)

    @property
    def is_full(self) -> bool:
        """Whether its last block is full."""
        return self.block_hash.digest != NO_DIGEST

    @property
    def content(self) -> tuple[bytes, bytes]:
        """What sets it apart from others with the same parent, and puts those with a common head together."""
        return self.block_hash.extra_keys, self.block_hash.token_bytes


class FreeKVCacheBlockQueue:
    """Free blocks in the order in which they will be reused (and, if cached, evicted): an intrusive doubly
    linked list.

    Unlike a deque it removes a block from the middle in O(1), which happens whenever the prefix cache revives
    one.
    """

    def __init__(self, blocks: Iterable[KVCacheBlock]) -> None:
        self.num_free_blocks = 0
        # Two fakes spare every operation the test for an empty end.
        self._head = KVCacheBlock(-1)
        self._tail = KVCacheBlock(-1)
        self._head.next_free = self._tail
        self._tail.prev_free = self._head
        self.append_n(blocks)

    def popleft(self) -> KVCacheBlock:
        """Take the block that is next to be reused. Raises ValueError when there is none."""
        return self.popleft_n(1)[0]

    def popleft_n(self, count: int) -> list[KVCacheBlock]:
        """Take `count` blocks from the front. Raises ValueError, taking none, when there are fewer."""
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
        """Take `block` out, wherever it stands. Raises ValueError when it is not in the queue."""
        before, after = block.prev_free, block.next_free
        if before is None or after is None:
            raise ValueError(f"{block} is not in the free queue")
        before.next_free = after
        after.prev_free = before
        block.prev_free = block.next_free = None
        self.num_free_blocks -= 1

    def append_n(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Put `blocks` at the back: they are reused last."""
        last = self._tail.prev_free
        assert last is not None
        self._insert(last, blocks, self._tail)

    def prepend_n(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Put `blocks` at the front, in their order: they are reused first."""
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
        """The free blocks, first to be reused first. The queue must not change meanwhile."""
        block = self._head.next_free
        while block is not None and block is not self._tail:
            yield block
            block = block.next_free

    def __len__(self) -> int:
        return self.num_free_blocks
