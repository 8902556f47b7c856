"""`KVCacheManager`: the interface of the KV cache to the scheduler.

A block is published, so that other requests can hit it, as soon as the step that fills it is planned. That
is sound because steps run in order, and in each layer a step writes the keys and values of all its tokens
before it reads any. So a request of the same step, or of a later one, finds the block written. Two kinds of
content can be used only from the next step on: the source of a copy, since copies precede the layers, and a
recurrent state, since a step passes it from token to token without a common point in time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from octavo.kv_cache.block import KVCacheBlock
from octavo.kv_cache.coordinator import KVCacheCoordinator
from octavo.kv_cache.hashing import encode_extra_keys, encode_tokens, extend_block_hashes
from octavo.kv_cache.planned_writes import FailedWrites, PlannedWrites
from octavo.kv_cache.request_blocks import CacheableRequest, CacheHit, RequestBlocks
from octavo.types.kv import KVCacheConfig
from octavo.types.observer import NO_OBSERVER, Observer
from octavo.types.steps import BlockIds


class KVCacheManager:
    """Gives blocks to requests, finds cached prefixes, and takes blocks back."""

    def __init__(
        self,
        config: KVCacheConfig,
        enable_caching: bool = True,
        observer: Observer = NO_OBSERVER,
        retention_interval: int | None = None,
    ) -> None:
        """`retention_interval` is explained in `Retention`."""
        self.config = config
        self.enable_caching = enable_caching
        self.coordinator = KVCacheCoordinator(config, observer, retention_interval)
        self.pool = self.coordinator.pool
        self.block_size = self.coordinator.block_size
        self.max_num_tokens = config.max_num_tokens  # the longest sequence the cache can hold
        # A recurrent state is cached only where a step ends with a block, so steps should end there.
        self.step_alignment = self.block_size if enable_caching and self.coordinator.holds_states else 1
        self._blocks_of: dict[str, RequestBlocks] = {}  # by request id
        self._num_promised = 0  # blocks, to all requests together
        # By request id, the copies (from, to) that its first step begins with. The sources are referenced.
        self._copies: dict[str, list[tuple[KVCacheBlock, KVCacheBlock]]] = {}
        self._writes = PlannedWrites()
        # Of the step that is being planned. By the digest of a block: tokens that a request runs in the step
        # towards that block, which it completes in this step or a later one.
        self._coming: dict[bytes, int] = {}
        # Recurrent states, which are published when the plan is complete.
        self._unpublished: list[tuple[RequestBlocks, int, int]] = []
        self._no_blocks: BlockIds = tuple([[] for _ in config.groups])
        self._no_hit = CacheHit(tuple([[] for _ in config.groups]), 0)

    @property
    def usage(self) -> float:
        """Share of the blocks that requests have, 0 to 1. Blocks that are only cached count as free."""
        return self.pool.usage

    # ------------------------------------------------------------------------------------------------- hits

    def get_computed_blocks(self, request: CacheableRequest) -> CacheHit:
        """The longest cached beginning of the request's tokens, without the last token, whose logits are
        wanted.

        The hit consists of whole blocks and, if a copy can be afforded, of the first tokens of one more block
        that is not full or goes on differently. Appends to the request's `block_hashes`, and changes nothing.
        """
        if request.skip_reading_prefix_cache or not self._is_cached(request):
            return self._no_hit
        coordinator, num_tokens = self.coordinator, len(request.token_ids)
        extend_block_hashes(request, num_tokens, self.block_size)
        most = (num_tokens - 1) // self.block_size
        prefixes = coordinator.find_longest_cache_hit(request.block_hashes, most)
        whole = coordinator.make_hit(prefixes, None)
        start = whole.num_tokens
        if start == num_tokens - 1:
            return whole
        if self._coming and len(prefixes) < (most if coordinator.holds_states else len(request.block_hashes)):
            coming = self._coming.get(request.block_hashes[len(prefixes)].digest, 0)
            whole = whole._replace(num_coming_tokens=coming)
        if coordinator.holds_states:
            return whole
        rest = encode_tokens(request.token_ids[start : min(start + self.block_size, num_tokens) - 1])
        extra_keys = encode_extra_keys(request, start, self.block_size)
        head = coordinator.index.find_longest_head(whole.prefix_id, extra_keys, rest)
        if head is None:
            return whole
        longer = coordinator.make_hit(prefixes, head)
        if self._writes.are_in_plan(longer.sources, longer.num_tokens):
            reaches_end = longer.num_tokens == num_tokens - 1
            return whole._replace(num_coming_tokens=num_tokens - start) if reaches_end else whole
        longer = longer._replace(sources=self._find_sources(longer.sources))
        # The source of a copy stays referenced until the step is planned, so this hit costs one more block
        # for a moment.
        return longer if self.can_admit(request, longer) else whole

    def can_admit(self, request: CacheableRequest, hit: CacheHit, num_spare: int = 0) -> bool:
        """Whether all of the request's tokens and one more fit beside the blocks that running requests have
        or were promised, and beside `num_spare` blocks that must stay free. Pure.

        To admit a request on less would invite a preemption before its prompt is done, or right after. An
        empty engine admits every request that fits the cache at all.
        """
        num_tokens = min(len(request.token_ids) + 1, self.max_num_tokens)
        needed = self.coordinator.num_blocks_for(num_tokens, request.num_encoder_tokens)
        needed -= self.coordinator.num_blocks_saved(hit)
        needed += sum(block.ref_cnt == 0 and not block.is_null for block in hit.sources)
        return needed + num_spare <= self.pool.num_free_blocks - self._num_promised

    # ---------------------------------------------------------------------------------------- planning a step

    def allocate_slots(
        self, request: CacheableRequest, num_new_tokens: int, hit: CacheHit | None = None
    ) -> BlockIds | None:
        """Secure blocks for `num_new_tokens` tokens after the computed ones (after `hit`, for a request that
        starts), and publish the blocks that prompt tokens among them fill.

        All or nothing. Returns, per group, the ids of the blocks added to the request's tables: first those
        of the hit; 0 where a table needs no block. Returns None when there are too few free blocks. Then
        nothing has changed, except that blocks which no token can see any more were given back.

        With success the tokens belong to the step that is being planned: the request must not lose its blocks
        before `start_step`.
        """
        if hit is None:
            start, blocks = request.num_computed_tokens, self._blocks_of[request.request_id]
            block_ids = self._allocate_more(blocks, start + num_new_tokens)
            if start >= blocks.num_prompt_tokens:
                return block_ids  # most steps: what they fill is published when its tokens are known
        else:
            start = hit.num_tokens
            block_ids = self._allocate_first(request, num_new_tokens, hit)
        if block_ids is not None:
            self._plan_writes(self._blocks_of[request.request_id], start, start + num_new_tokens)
        return block_ids

    def give_back_skipped_blocks(self) -> None:
        """Take from all requests the blocks that none of their coming tokens can see."""
        for blocks in self._blocks_of.values():
            self._give_back_skipped_blocks(blocks)

    def take_block_copies(self) -> list[tuple[int, int]]:
        """The copies (from, to) that the planned step begins with: those asked for since the last call."""
        if not self._copies:
            return []
        copies = [copy for copies in self._copies.values() for copy in copies]
        self._copies.clear()
        self.pool.free_blocks([source for source, _ in copies])
        return [(source.block_id, destination.block_id) for source, destination in copies]

    def take_blocks_to_zero(self) -> list[int]:
        """The blocks that the planned step zeroes before it makes copies: those taken since the last call."""
        return self.coordinator.take_blocks_to_zero()

    def start_step(self, step: int) -> None:
        """The step is planned, and `step` is its number. It writes what was published since the last call."""
        for blocks, first, num_tokens in self._unpublished:
            self._publish(blocks, first, num_tokens)
        self._unpublished.clear()
        self._coming.clear()
        self._writes.start_step(step)

    # -------------------------------------------------------------------------------------- results of a step

    def finish_step(self, step: int, is_bad: Callable[[str], bool]) -> list[str]:
        """Note that step number `step`, the oldest in flight, has run. Forget the blocks that hold garbage.

        `is_bad` tells for a request id whether the request wrote garbage in this step.

        Returns the ids of other requests that have computed something from garbage and must start again.
        """
        failed = self._writes.finish_step(step, is_bad)
        return self._forget(failed) if failed.blocks else []

    def fail_steps(self) -> list[str]:
        """Forget all blocks that steps still had to write: the oldest step in flight has failed, or a step
        could not be planned. Returns the ids of the requests that rely on such blocks.
        """
        self._unpublished.clear()
        self._coming.clear()
        return self._forget(self._writes.fail())

    def cache_blocks(self, request: CacheableRequest, num_computed_tokens: int) -> None:
        """Publish the full blocks among the first `num_computed_tokens` tokens, whose KV is written.

        Only blocks whose tokens were not known when their step was planned are not published yet.
        """
        blocks = self._blocks_of[request.request_id]
        blocks.is_written = True
        num_full = num_computed_tokens // self.block_size
        if num_full > blocks.num_cached_blocks and self._is_cached(request):
            self._cache_blocks(blocks, num_computed_tokens)

    def free(self, request: CacheableRequest, num_computed_tokens: int = 0) -> None:
        """Give back all blocks of the request. Nothing happens for a request without blocks.

        Its first `num_computed_tokens` tokens, whose KV is known to be written, can be found from now on, to
        the last token.
        """
        blocks = self._blocks_of.get(request.request_id)
        if blocks is None:
            return
        if num_computed_tokens and blocks.is_written and self._is_cached(request):
            self.cache_blocks(request, num_computed_tokens)
            self._cache_tail(blocks, num_computed_tokens)
        del self._blocks_of[request.request_id]
        self._num_promised -= blocks.num_promised
        self.coordinator.free(blocks)
        self.pool.free_blocks([source for source, _ in self._copies.pop(request.request_id, [])])

    # ---------------------------------------------------------------------------------------------- reports

    def num_blocks_returned(self, requests: Iterable[CacheableRequest]) -> int:
        """How many more blocks `can_admit` could count on if `requests` gave up theirs."""
        returned = [self._blocks_of[request.request_id] for request in requests]
        num_owners = Counter(block for each in returned for table in each.tables for block in table)
        num_free = sum(block.ref_cnt == count for block, count in num_owners.items() if not block.is_null)
        return num_free + sum(each.num_promised for each in returned)

    def get_num_common_prefix_blocks(self, request: CacheableRequest, num_running: int) -> list[int]:
        """Per group, how many leading blocks all `num_running` running requests share; `request` is one."""
        blocks = self._blocks_of[request.request_id]
        return self.coordinator.get_num_common_prefix_blocks(blocks, num_running, self._num_copies())

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. Returns False, changing nothing, while any request has blocks."""
        return self.pool.reset_prefix_cache()

    def get_owners(self) -> set[str]:
        """The ids of the requests that have blocks."""
        return set(self._blocks_of)

    def check(self) -> None:
        """Recompute every count from the requests' tables. Raises AssertionError."""
        ref_cnts = self._num_copies()
        for blocks in self._blocks_of.values():
            ref_cnts.update(block.block_id for block in self.coordinator.check(blocks))
        self.pool.check(ref_cnts)
        promised = sum(blocks.num_promised for blocks in self._blocks_of.values())
        assert self._num_promised == promised, "promised blocks do not add up"
        assert self._copies.keys() <= self._blocks_of.keys(), "copies are made for requests that do not run"

    # -------------------------------------------------------------------------------------------- allocation

    def _allocate_first(
        self, request: CacheableRequest, num_new_tokens: int, hit: CacheHit
    ) -> BlockIds | None:
        request_id = request.request_id
        assert request_id not in self._blocks_of, f"{request_id} has blocks already"
        blocks = self.coordinator.start(request, hit, hit.num_tokens + num_new_tokens)
        if blocks is None:
            return None
        self._blocks_of[request_id] = blocks
        self._writes.add_reader(blocks, hit.get_all_blocks())
        if hit.sources:
            index = blocks.num_cached_blocks
            self._copies[request_id] = [
                (source, table[index])
                for source, table in zip(hit.sources, blocks.tables, strict=True)
                if not source.is_null
            ]
            blocks.is_written = False
        blocks.num_reserved = self.coordinator.num_blocks_for(
            len(request.token_ids), request.num_encoder_tokens
        )
        self._settle_promise(blocks, 0)
        return self.coordinator.get_block_ids(blocks)

    def _allocate_more(self, blocks: RequestBlocks, num_tokens: int) -> BlockIds | None:
        if num_tokens <= blocks.num_slots:
            return self._no_blocks
        self._give_back_skipped_blocks(blocks)
        num_promised = blocks.num_promised
        block_ids = self.coordinator.allocate_new_blocks(blocks, num_tokens)
        if block_ids is None:  # perhaps other requests still have blocks that they no longer need
            self.give_back_skipped_blocks()
            block_ids = self.coordinator.allocate_new_blocks(blocks, num_tokens)
        self._settle_promise(blocks, num_promised)
        return block_ids

    def _give_back_skipped_blocks(self, blocks: RequestBlocks) -> None:
        num_promised, request = blocks.num_promised, blocks.request
        num_certain = request.num_computed_tokens - request.num_drafts_in_flight
        self.coordinator.remove_skipped_blocks(blocks, num_certain)
        self._settle_promise(blocks, num_promised)

    def _settle_promise(self, blocks: RequestBlocks, num_promised: int) -> None:
        """Blocks came or went. `num_promised` is the number that was promised to the request before."""
        if blocks.num_slots >= len(blocks.request.token_ids):
            blocks.num_reserved = 0
        self._num_promised += blocks.num_promised - num_promised

    # ------------------------------------------------------------------------------------------- publication

    def _is_cached(self, request: CacheableRequest) -> bool:
        """Whether the request's tokens can be found, and find something, in the prefix cache.

        The KV of tokens that see another input depends on that input, which no hash covers.
        """
        return self.enable_caching and not (request.num_encoder_tokens and self.coordinator.sees_encoder)

    def _plan_writes(self, blocks: RequestBlocks, start: int, num_tokens: int) -> None:
        """The step that is being planned runs the request's tokens from `start` up to `num_tokens`."""
        request = blocks.request
        if num_tokens > len(request.token_ids) or not self._is_cached(request):
            return  # a token that is not known yet cannot be found
        if self.coordinator.holds_states:
            self._unpublished.append((blocks, start, num_tokens))
        else:
            self._publish(blocks, start, num_tokens)
        extend_block_hashes(request, len(request.token_ids), self.block_size)
        if blocks.num_cached_blocks < len(request.block_hashes):
            digest = request.block_hashes[blocks.num_cached_blocks].digest
            self._coming[digest] = max(num_tokens - start, self._coming.get(digest, 0))

    def _publish(self, blocks: RequestBlocks, start: int, num_tokens: int) -> None:
        """Publish what is in the cache once a step has run the tokens from `start` up to `num_tokens`: full
        blocks, and at the end of the prompt the tail after them.
        """
        written: list[KVCacheBlock] = []
        if num_tokens // self.block_size > blocks.num_cached_blocks:
            written += self._cache_blocks(blocks, num_tokens)
        if num_tokens == blocks.num_prompt_tokens:
            written += self._cache_tail(blocks, num_tokens)
        if written:
            self._writes.add(blocks, written, start)

    def _cache_blocks(self, blocks: RequestBlocks, num_tokens: int) -> list[KVCacheBlock]:
        request = blocks.request
        extend_block_hashes(request, num_tokens, self.block_size)
        return self.coordinator.cache_blocks(blocks, request.block_hashes, num_tokens)

    def _cache_tail(self, blocks: RequestBlocks, num_tokens: int) -> list[KVCacheBlock]:
        start = blocks.num_cached_blocks * self.block_size
        if start >= num_tokens or self.coordinator.holds_states:
            return []
        extra_keys = encode_extra_keys(blocks.request, start, self.block_size)
        token_bytes = encode_tokens(blocks.request.token_ids[start:num_tokens])
        return self.coordinator.cache_tail(blocks, extra_keys, token_bytes)

    def _forget(self, failed: FailedWrites) -> list[str]:
        """Forget blocks that hold garbage. Returns the ids of the running requests that read them."""
        self.pool.forget(failed.blocks)
        readers = [(blocks.request.request_id, blocks) for blocks in failed.readers]
        return [request_id for request_id, blocks in readers if self._blocks_of.get(request_id) is blocks]

    def _find_sources(self, blocks: tuple[KVCacheBlock, ...]) -> tuple[KVCacheBlock, ...]:
        """The blocks that hold now what `blocks` will hold once the planned step has made its copies."""
        if not self._copies:
            return blocks
        source_of = {target: source for copies in self._copies.values() for source, target in copies}
        return tuple(source_of.get(block, block) for block in blocks)

    def _num_copies(self) -> Counter[int]:
        """By block id, the references that belong to copies."""
        return Counter(source.block_id for copies in self._copies.values() for source, _ in copies)
