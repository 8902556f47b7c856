"""`KVCacheManager`: the scheduler's view of the KV cache, in a few verbs with one meaning each."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from octavo.kv_cache.block_pool import BlockPool
from octavo.kv_cache.coordinator import CacheHit, KVCacheCoordinator
from octavo.kv_cache.hashing import BlockHash, extend_block_hashes
from octavo.types.kv import KVCacheConfig
from octavo.types.steps import BlockIds


class CacheableRequest(Protocol):
    """What the cache must know of a request. It appends to `block_hashes`, and changes nothing else."""

    request_id: str
    token_ids: list[int]
    num_computed_tokens: int
    block_hashes: list[BlockHash]
    cache_salt: str | None
    skip_reading_prefix_cache: bool


class KVCacheManager:
    """Gives blocks to requests, finds cached prefixes, and takes blocks back."""

    def __init__(self, config: KVCacheConfig, enable_caching: bool = True) -> None:
        self.config = config
        self.enable_caching = enable_caching
        self.pool = BlockPool(config.num_blocks)
        self.coordinator = KVCacheCoordinator(config, self.pool)
        self.block_size = self.coordinator.block_size
        self.max_num_tokens = config.max_num_tokens  # the longest sequence the cache can hold
        self._no_blocks: BlockIds = tuple([] for _ in config.groups)
        self._no_hit = CacheHit(tuple([] for _ in config.groups), 0)
        # Blocks each request was admitted with the prospect of, and has not had yet.
        self._promised: dict[str, int] = {}
        self._num_promised = 0  # their sum

    @property
    def usage(self) -> float:
        """Share of the blocks that requests hold, 0 to 1. Cached blocks that nobody holds count as free."""
        return self.pool.usage

    def get_computed_blocks(self, request: CacheableRequest) -> CacheHit:
        """The longest cached beginning of the request's tokens, never the last token: its logits are wanted.

        Only the request's `block_hashes` may grow; blocks stay as they are until `allocate_slots`.
        """
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return self._no_hit
        num_tokens = len(request.token_ids)
        self._extend_block_hashes(request, num_tokens)
        return self.coordinator.find_longest_cache_hit(request.block_hashes, num_tokens - 1)

    def can_admit(self, request: CacheableRequest, hit: CacheHit, num_spare: int = 0) -> bool:
        """Whether all of the request's tokens and one more fit beside what running requests hold or were
        promised. Pure.

        Admission on less invites a preemption before the prompt is done, or right after it. An empty engine
        admits whatever fits the cache at all.
        """
        needed = self._num_needed(hit, min(len(request.token_ids) + 1, self.max_num_tokens))
        return needed <= self.pool.num_free_blocks - self._num_promised - num_spare

    def allocate_slots(
        self, request: CacheableRequest, num_new_tokens: int, hit: CacheHit | None = None
    ) -> BlockIds | None:
        """Secure blocks for `num_new_tokens` tokens after the computed ones (and after `hit`, for a request
        that starts).

        All or nothing. Returns the ids of the blocks added to the request's tables, per group, the hit's
        first; None when there are too few free blocks, and then nothing has changed but blocks given back
        because nobody sees them.
        """
        if hit is not None:
            return self._allocate_first(request, num_new_tokens, hit)
        request_id = request.request_id
        num_tokens = request.num_computed_tokens + num_new_tokens
        self.coordinator.remove_skipped_blocks(request_id, request.num_computed_tokens)
        num_missing = self.coordinator.num_missing_blocks(request_id, num_tokens)
        if num_missing == 0:
            return self._no_blocks
        if num_missing > self.pool.num_free_blocks:
            return None
        self._keep_promise(request_id, num_missing)
        return self.coordinator.allocate_new_blocks(request_id, num_tokens)

    def cache_blocks(self, request: CacheableRequest, num_computed_tokens: int) -> None:
        """Publish the full blocks among the first `num_computed_tokens` tokens, whose KV is written."""
        num_full = num_computed_tokens // self.block_size
        if self.enable_caching and self.coordinator.num_cached_blocks(request.request_id) < num_full:
            self._extend_block_hashes(request, num_computed_tokens)
            self.coordinator.cache_blocks(request.request_id, request.block_hashes, num_full)

    def free(self, request: CacheableRequest, num_computed_tokens: int = 0) -> None:
        """Give back everything the request holds. Nothing happens for one that holds nothing."""
        self._num_promised -= self._promised.pop(request.request_id, 0)
        self.coordinator.free(request.request_id)

    def get_num_common_prefix_blocks(self, request: CacheableRequest, num_running: int) -> list[int]:
        """Per group the leading blocks that all `num_running` running requests share, `request` being one."""
        return self.coordinator.get_num_common_prefix_blocks(request.request_id, num_running)

    def take_block_copies(self) -> list[tuple[int, int]]:
        """None yet."""
        return []

    def take_blocks_to_zero(self) -> list[int]:
        """None yet."""
        return []

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that requests can hold at all."""
        return self.pool.num_usable_blocks

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. Returns False, changing nothing, while any request holds a block."""
        return self.pool.reset_prefix_cache()

    def get_holders(self) -> set[str]:
        """The ids of the requests that hold blocks."""
        return self.coordinator.get_holders()

    def check(self) -> None:
        """Recompute all reference counts from the requests' tables. Raises AssertionError."""
        self.pool.check(
            Counter(block.block_id for block in self.coordinator.held_blocks() if not block.is_null)
        )
        assert self._num_promised == sum(self._promised.values()), "promised blocks do not add up"
        assert self._promised.keys() <= self.get_holders(), "blocks are promised to requests that do not run"

    def _num_needed(self, hit: CacheHit, num_tokens: int) -> int:
        """Free blocks that `num_tokens` tokens beginning with `hit` take, its unheld ones included."""
        num_held = sum(block.ref_cnt > 0 for blocks in hit.blocks for block in blocks)
        return self.config.num_blocks_for(num_tokens) - num_held

    def _allocate_first(
        self, request: CacheableRequest, num_new_tokens: int, hit: CacheHit
    ) -> BlockIds | None:
        request_id = request.request_id
        num_tokens = hit.num_tokens + num_new_tokens
        if self._num_needed(hit, num_tokens) > self.pool.num_free_blocks:
            return None
        self.coordinator.adopt_computed_blocks(request_id, hit)
        self.coordinator.allocate_new_blocks(request_id, num_tokens)
        promised = self.coordinator.num_missing_blocks(request_id, len(request.token_ids))
        self._promised[request_id] = promised
        self._num_promised += promised
        return self.coordinator.get_block_ids(request_id)

    def _keep_promise(self, request_id: str, num_blocks: int) -> None:
        kept = min(self._promised[request_id], num_blocks)
        self._promised[request_id] -= kept
        self._num_promised -= kept

    def _extend_block_hashes(self, request: CacheableRequest, num_tokens: int) -> None:
        extend_block_hashes(
            request.block_hashes, request.token_ids, num_tokens, self.block_size, request.cache_salt
        )
