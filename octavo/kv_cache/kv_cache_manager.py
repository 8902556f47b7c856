"""`KVCacheManager`: the scheduler's view of the KV cache, in a few verbs with one meaning each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from octavo.kv_cache.block import KVCacheBlock
from octavo.kv_cache.coordinator import CacheHit, KVCacheCoordinator, RequestBlocks
from octavo.kv_cache.hashing import HashedRequest, encode_extra_keys, encode_tokens, extend_block_hashes
from octavo.types.kv import KVCacheConfig
from octavo.types.observer import NOBODY, Observer
from octavo.types.steps import BlockIds


class CacheableRequest(HashedRequest, Protocol):
    """What the cache must know of a request. It appends to `block_hashes`, and changes nothing else."""

    request_id: str
    num_computed_tokens: int
    num_encoder_tokens: int  # of another input, which cross attention sees
    skip_reading_prefix_cache: bool


class KVCacheManager:
    """Gives blocks to requests, finds cached prefixes, and takes blocks back."""

    def __init__(
        self,
        config: KVCacheConfig,
        enable_caching: bool = True,
        observer: Observer = NOBODY,
        retention_interval: int | None = None,
    ) -> None:
        """`retention_interval` as in `Retention`."""
        self.config = config
        self.enable_caching = enable_caching
        self.coordinator = KVCacheCoordinator(config, observer, retention_interval)
        self.pool = self.coordinator.pool
        self.block_size = self.coordinator.block_size
        self.max_num_tokens = config.max_num_tokens  # the longest sequence the cache can hold
        # Steps that cross a block's end should end at one, so that there is a state to be cached.
        self.step_alignment = self.block_size if enable_caching and self.coordinator.holds_states else 1
        self._held: dict[str, RequestBlocks] = {}
        self._num_promised = 0  # blocks, to all of them
        # By request, the copies (from, to) that it waits for, and whose sources must stay as they are.
        self._copies: dict[str, list[tuple[KVCacheBlock, KVCacheBlock]]] = {}
        self._no_blocks: BlockIds = tuple([[] for _ in config.groups])
        self._no_hit = CacheHit(tuple([[] for _ in config.groups]), 0)

    @property
    def usage(self) -> float:
        """Share of the blocks that requests hold, 0 to 1. Cached blocks that nobody holds count as free."""
        return self.pool.usage

    def get_computed_blocks(self, request: CacheableRequest) -> CacheHit:
        """The longest cached beginning of the request's tokens, never the last token: its logits are wanted.

        Whole blocks, and after them the head of one that goes on differently or is not full, if there is room
        for a copy. Only the request's `block_hashes` may grow; blocks stay until `allocate_slots`.
        """
        if request.skip_reading_prefix_cache or not self._is_cached(request):
            return self._no_hit
        coordinator = self.coordinator
        num_tokens = len(request.token_ids)
        extend_block_hashes(request, num_tokens, self.block_size)
        prefixes = coordinator.find_longest_cache_hit(
            request.block_hashes, (num_tokens - 1) // self.block_size
        )
        whole = coordinator.make_hit(prefixes, None)
        start = whole.num_tokens
        if coordinator.holds_states or start == num_tokens - 1:
            return whole
        rest = encode_tokens(request.token_ids[start : min(start + self.block_size, num_tokens) - 1])
        extra_keys = encode_extra_keys(request, start, self.block_size)
        head = coordinator.index.find_longest_head(whole.prefix_id, extra_keys, rest)
        if head is None:
            return whole
        # A copy needs its source for a moment longer than a request that fits barely can spare a block.
        longer = coordinator.make_hit(prefixes, head)
        return longer if self.can_admit(request, longer) else whole

    def can_admit(self, request: CacheableRequest, hit: CacheHit, num_spare: int = 0) -> bool:
        """Whether all of the request's tokens and one more fit beside what running requests hold or were
        promised, and beside `num_spare` blocks that are to stay free. Pure.

        Admission on less invites a preemption before the prompt is done, or right after it. An empty engine
        admits whatever fits the cache at all.
        """
        num_tokens = min(len(request.token_ids) + 1, self.max_num_tokens)
        needed = self.coordinator.num_blocks_for(num_tokens, request.num_encoder_tokens)
        needed -= self.coordinator.num_blocks_saved(hit)
        needed += sum(block.ref_cnt == 0 and not block.is_null for block in hit.sources)
        return needed + num_spare <= self.pool.num_free_blocks - self._num_promised

    def allocate_slots(
        self, request: CacheableRequest, num_new_tokens: int, hit: CacheHit | None = None
    ) -> BlockIds | None:
        """Secure blocks for `num_new_tokens` tokens after the computed ones (and after `hit`, for a request
        that starts).

        All or nothing. Returns the ids of the blocks added to the request's tables, per group, the hit's
        first, 0 where a table needs no block; None when there are too few free blocks, and then nothing has
        changed but blocks given back because nobody sees them.
        """
        if hit is not None:
            return self._allocate_first(request, num_new_tokens, hit)
        held = self._held[request.request_id]
        num_tokens = request.num_computed_tokens + num_new_tokens
        if num_tokens <= held.num_slots:
            return self._no_blocks
        num_promised = held.num_promised
        self.coordinator.remove_skipped_blocks(held, request.num_computed_tokens)
        block_ids = self.coordinator.allocate_new_blocks(held, num_tokens, request.num_encoder_tokens)
        self._settle_promise(held, request, num_promised)
        return block_ids

    def take_block_copies(self) -> list[tuple[int, int]]:
        """The copies (from, to) to be made before the next step runs, wanted since the last call."""
        if not self._copies:
            return []
        copies = [copy for copies in self._copies.values() for copy in copies]
        self._copies.clear()
        self.pool.free_blocks([source for source, _ in copies])
        return [(source.block_id, destination.block_id) for source, destination in copies]

    def take_blocks_to_zero(self) -> list[int]:
        """The blocks to be zeroed before the next step runs (and before copies), handed out since the last
        call.
        """
        return self.coordinator.take_blocks_to_zero()

    def cache_blocks(self, request: CacheableRequest, num_computed_tokens: int) -> None:
        """Publish the full blocks among the first `num_computed_tokens` tokens, whose KV is written."""
        held = self._held[request.request_id]
        held.is_written = True
        num_full = num_computed_tokens // self.block_size
        if num_full > held.num_cached_blocks and self._is_cached(request):
            extend_block_hashes(request, num_computed_tokens, self.block_size)
            self.coordinator.cache_blocks(held, request.block_hashes, num_computed_tokens)

    def free(self, request: CacheableRequest, num_computed_tokens: int = 0) -> None:
        """Give back everything the request holds. Nothing happens for one that holds nothing.

        Its first `num_computed_tokens` tokens, whose KV is known to be written, can be found from now on, to
        the last one.
        """
        held = self._held.get(request.request_id)
        if held is None:
            return
        if num_computed_tokens and held.is_written and self._is_cached(request):
            self.cache_blocks(request, num_computed_tokens)
            self._cache_tail(request, held, num_computed_tokens)
        del self._held[request.request_id]
        self._num_promised -= held.num_promised
        self.coordinator.free(held)
        self.pool.free_blocks([source for source, _ in self._copies.pop(request.request_id, [])])

    def num_blocks_returned(self, requests: Iterable[CacheableRequest]) -> int:
        """Blocks that could be given to others, by `can_admit`'s reckoning, if `requests` gave up theirs."""
        held = [self._held[request.request_id] for request in requests]
        num_holders = Counter(block for each in held for table in each.tables for block in table)
        returned = sum(block.ref_cnt == count for block, count in num_holders.items() if not block.is_null)
        return returned + sum(each.num_promised for each in held)

    def get_num_common_prefix_blocks(self, request: CacheableRequest, num_running: int) -> list[int]:
        """Per group the leading blocks that all `num_running` running requests share, `request` being one."""
        held = self._held[request.request_id]
        return self.coordinator.get_num_common_prefix_blocks(held, num_running, self._num_copies())

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. Returns False, changing nothing, while any request holds a block."""
        return self.pool.reset_prefix_cache()

    def get_holders(self) -> set[str]:
        """The ids of the requests that hold blocks."""
        return set(self._held)

    def check(self) -> None:
        """Recompute all that is kept count of from the requests' tables. Raises AssertionError."""
        ref_cnts = self._num_copies()
        for held in self._held.values():
            ref_cnts.update(block.block_id for block in self.coordinator.check(held))
        self.pool.check(ref_cnts)
        promised = sum(held.num_promised for held in self._held.values())
        assert self._num_promised == promised, "promised blocks do not add up"
        assert self._copies.keys() <= self._held.keys(), "copies are made for requests that do not run"

    def _is_cached(self, request: CacheableRequest) -> bool:
        """Whether the request's tokens can be found, and find something, in the prefix cache.

        What tokens that see another input come to depends on that input, which no hash covers.
        """
        return self.enable_caching and not (request.num_encoder_tokens and self.coordinator.sees_encoder)

    def _allocate_first(
        self, request: CacheableRequest, num_new_tokens: int, hit: CacheHit
    ) -> BlockIds | None:
        request_id = request.request_id
        assert request_id not in self._held, f"{request_id} holds blocks already"
        held = self.coordinator.start(
            hit, hit.num_tokens + num_new_tokens, len(request.token_ids), request.num_encoder_tokens
        )
        if held is None:
            return None
        self._held[request_id] = held
        if hit.sources:
            index = held.num_cached_blocks
            self._copies[request_id] = [
                (source, table[index])
                for source, table in zip(hit.sources, held.tables, strict=True)
                if not source.is_null
            ]
            held.is_written = False
        held.num_reserved = self.coordinator.num_blocks_for(
            len(request.token_ids), request.num_encoder_tokens
        )
        self._settle_promise(held, request, 0)
        return self.coordinator.get_block_ids(held)

    def _settle_promise(self, held: RequestBlocks, request: CacheableRequest, num_promised: int) -> None:
        """Blocks came and went: `num_promised` is what the request was promised before."""
        if held.num_slots >= len(request.token_ids):
            held.num_reserved = 0
        self._num_promised += held.num_promised - num_promised

    def _cache_tail(self, request: CacheableRequest, held: RequestBlocks, num_computed_tokens: int) -> None:
        start = held.num_cached_blocks * self.block_size
        if start < num_computed_tokens and not self.coordinator.holds_states:
            extra_keys = encode_extra_keys(request, start, self.block_size)
            tokens = encode_tokens(request.token_ids[start:num_computed_tokens])
            self.coordinator.cache_tail(held, extra_keys, tokens)

    def _num_copies(self) -> Counter[int]:
        """By block id, the references that are held for copies."""
        return Counter(source.block_id for copies in self._copies.values() for source, _ in copies)
