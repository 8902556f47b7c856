"""`KVCacheCoordinator`: the KV cache groups of one cache, acting as one.

A request has blocks in every group or in none. A prefix counts as cached only as far as all groups have it.
All groups have blocks of one size. So the tables of all groups that follow tokens are equally long, and one
comparison tells whether a request needs a block, whatever the number of groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, compress, islice

from octavo.kv_cache.block import NO_PREFIX, CachedPrefix, KVCacheBlock
from octavo.kv_cache.block_pool import BlockPool
from octavo.kv_cache.hashing import NO_DIGEST, BlockHash
from octavo.kv_cache.prefix_index import PrefixIndex
from octavo.kv_cache.request_blocks import CacheableRequest, CacheHit, RequestBlocks
from octavo.kv_cache.retention import Retention
from octavo.kv_cache.single_type_kv_cache_manager import MANAGERS
from octavo.types.kv import KVCacheConfig, KVCacheSpec
from octavo.types.observer import Observer
from octavo.types.steps import BlockIds


class KVCacheCoordinator:
    """Asks the manager of each kind and combines the answers. All groups share one pool and block size."""

    def __init__(self, config: KVCacheConfig, observer: Observer, retention_interval: int | None) -> None:
        block_sizes = {group.spec.block_size for group in config.groups}
        assert len(block_sizes) == 1, f"groups of one cache have one block size, not {block_sizes}"
        self.block_size = block_sizes.pop()
        self.max_chunk = config.max_chunk
        self.num_groups = len(config.groups)
        group_ids: dict[KVCacheSpec, list[int]] = {}
        for group_id, group in enumerate(config.groups):
            group_ids.setdefault(group.spec, []).append(group_id)
        self.managers = [MANAGERS[type(spec)](spec, tuple(ids)) for spec, ids in group_ids.items()]
        # Whether any group keeps recurrent states. Then hits end with a block, and steps should too.
        self.holds_states = any(manager.holds_states for manager in self.managers)
        # Whether any group keeps the KV of another input, which an encoder has read.
        self.sees_encoder = not all(manager.follows_tokens for manager in self.managers)
        self._keeping = [manager for manager in self.managers if manager.keeps_all_blocks]
        self._trimming = [manager for manager in self.managers if not manager.keeps_all_blocks]
        num_cached_groups = sum(len(manager.group_ids) for manager in self.managers if manager.follows_tokens)
        self.index = PrefixIndex(self.num_groups, num_cached_groups, observer)
        self.pool = BlockPool(config.num_blocks, self.index)
        self._retention = Retention(retention_interval, self.block_size)
        self._not_cached = CachedPrefix(BlockHash(NO_DIGEST, b"", b""), NO_PREFIX, NO_PREFIX, self.num_groups)
        self._blocks_to_zero: list[int] = []

    # ------------------------------------------------------------------------------------------------- hits

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_blocks: int
    ) -> list[CachedPrefix]:
        """The prefixes, one per block, of the longest beginning that all groups have cached, of at most
        `max_blocks` blocks. Pure.

        Each group may shorten the candidate, and the others must confirm the shorter one; this repeats until
        all agree. Groups that keep all blocks are asked once: they have every shorter candidate too.
        """
        prefixes = self._find_prefixes(block_hashes, max_blocks)
        length = len(prefixes)
        for manager in self._keeping:
            length = manager.find_longest_cache_hit(prefixes, length)
        candidate = -1
        while length != candidate:
            candidate = length
            for manager in self._trimming:
                length = manager.find_longest_cache_hit(prefixes, length)
            while length and not prefixes[length - 1].num_groups:
                # No group has a block for this prefix, so nothing proves that it was ever computed.
                length -= 1
        return prefixes[:length]

    def make_hit(self, prefixes: Sequence[CachedPrefix], head: tuple[CachedPrefix, int] | None) -> CacheHit:
        """The hit of these full blocks and, if there is a `head`, of the first tokens of one more block.

        `head` is a prefix that ends with that block, and the number of tokens.
        """
        null_block = self.pool.null_block
        num_tokens = len(prefixes) * self.block_size + (head[1] if head else 0)
        blocks: list[list[KVCacheBlock]] = [[] for _ in range(self.num_groups)]
        for manager in self.managers:
            if manager.follows_tokens:
                num_skipped = min(manager.num_skipped_blocks(num_tokens), len(prefixes))
                for group_id in manager.group_ids:
                    blocks[group_id] = [null_block] * num_skipped
                    blocks[group_id] += [prefix.get_block(group_id) for prefix in prefixes[num_skipped:]]
        prefix_id = prefixes[-1].prefix_id if prefixes else NO_PREFIX
        sources: list[KVCacheBlock] = []
        if head:
            groups = enumerate(head[0].blocks)
            sources = [head[0].get_block(group_id) if twins else null_block for group_id, twins in groups]
        return CacheHit(tuple(blocks), num_tokens, prefix_id, tuple(sources))

    def num_blocks_saved(self, hit: CacheHit) -> int:
        """How many blocks of a hit never cost its request a free block, because other requests have them too
        and this one keeps them to its end.

        Blocks that slide out of a window do not count. The request gives such a block back, but the block is
        not free while other requests have it, and the request may take another block in its place.
        """
        kept = [hit.blocks[group_id] for manager in self._keeping for group_id in manager.group_ids]
        return sum([block.ref_cnt > 0 for block in chain(*kept)])

    # ----------------------------------------------------------------------------------------------- blocks

    def num_blocks_for(self, num_tokens: int, num_encoder_tokens: int) -> int:
        """The most blocks that a request has at once on its way to `num_tokens` tokens."""
        return sum(
            [
                manager.num_blocks_for(num_tokens, num_encoder_tokens, self.max_chunk)
                * len(manager.group_ids)
                for manager in self.managers
            ]
        )

    def start(self, request: CacheableRequest, hit: CacheHit, num_tokens: int) -> RequestBlocks | None:
        """Tables that begin with the hit and hold `num_tokens` tokens, and one reference to each source of
        the hit. None, changing nothing, where there are too few free blocks.
        """
        num_blocks = hit.num_tokens // self.block_size
        num_skipped = [
            min(manager.num_skipped_blocks(hit.num_tokens), num_blocks) for manager in self.managers
        ]
        blocks = RequestBlocks(request, hit, self.block_size, num_skipped)
        adopted = hit.get_all_blocks()
        num_new = self._num_new(blocks, num_tokens)
        num_unused = sum([block.ref_cnt == 0 for block in adopted])
        if self._num_blocks(num_new) + num_unused > self.pool.num_free_blocks:
            return None
        self.pool.touch(adopted)  # first: a block that is taken before might be one of the hit
        self._extend(blocks, num_tokens, num_new)
        return blocks

    def allocate_new_blocks(self, blocks: RequestBlocks, num_tokens: int) -> BlockIds | None:
        """Extend the tables to hold `num_tokens` tokens. Returns the ids of the added blocks, per group.
        None, changing nothing, where there are too few free blocks.
        """
        num_new = self._num_new(blocks, num_tokens)
        if self._num_blocks(num_new) > self.pool.num_free_blocks:
            return None
        return self._extend(blocks, num_tokens, num_new)

    def remove_skipped_blocks(self, blocks: RequestBlocks, num_computed_tokens: int) -> None:
        """Give back the blocks that no token after the computed ones can see, the last ones first. Retention
        says which of them stay cached.
        """
        skipped: list[KVCacheBlock] = []
        for number, manager in enumerate(self.managers):
            start, stop = blocks.num_skipped[number], manager.num_skipped_blocks(num_computed_tokens)
            if start < stop:
                blocks.num_skipped[number] = stop
                nothing = [self.pool.null_block] * (stop - start)
                is_forgotten = [
                    not self._retention.keeps(manager, index, blocks.num_prompt_tokens)
                    for index in range(start, stop)
                ]
                for group_id in manager.group_ids:
                    table = blocks.tables[group_id]
                    skipped += table[start:stop]
                    forgotten = compress(table[start:stop], is_forgotten)
                    self.pool.forget(block for block in forgotten if block.ref_cnt == 1)
                    table[start:stop] = nothing
        if skipped:
            skipped = [block for block in reversed(skipped) if not block.is_null]
            self.pool.free_blocks(skipped)
            blocks.num_blocks -= len(skipped)

    def take_blocks_to_zero(self) -> list[int]:
        """The blocks that were taken since the last call and must be zeroed before they are read."""
        taken, self._blocks_to_zero = self._blocks_to_zero, []
        return taken

    def free(self, blocks: RequestBlocks) -> None:
        """Give back all blocks, the last ones first and in all groups alike, so that the beginnings of
        sequences stay cached longest.
        """
        for follows_tokens in (True, False):
            tables = [
                blocks.tables[group_id]
                for manager in self.managers
                if manager.follows_tokens is follows_tokens
                for group_id in manager.group_ids
            ]
            self.pool.free_blocks(chain.from_iterable(zip(*map(reversed, tables), strict=True)))

    # ------------------------------------------------------------------------------------------ publication

    def cache_blocks(
        self, blocks: RequestBlocks, block_hashes: Sequence[BlockHash], num_computed_tokens: int
    ) -> list[KVCacheBlock]:
        """Publish the full blocks among the first `num_computed_tokens` tokens. Returns the new ones.

        All blocks with one index stand for one prefix, even where some groups have no such block any more.
        """
        num_full = num_computed_tokens // self.block_size
        published: list[KVCacheBlock] = []
        for index in range(blocks.num_cached_blocks, num_full):
            at_index = [self.pool.null_block] * self.num_groups
            for manager in self.managers:
                if manager.can_cache(index, num_computed_tokens):
                    for group_id in manager.group_ids:
                        at_index[group_id] = block = blocks.tables[group_id][index]
                        if not block.is_null:
                            published.append(block)
            parent_digest = block_hashes[index - 1].digest if index else None
            blocks.prefix_id = self.index.publish(
                block_hashes[index], blocks.prefix_id, parent_digest, at_index
            )
        blocks.num_cached_blocks = num_full
        return published

    def cache_tail(self, blocks: RequestBlocks, extra_keys: bytes, token_bytes: bytes) -> list[KVCacheBlock]:
        """Publish the tokens that follow the published full blocks and begin a block that is not full.
        Returns the new blocks; none where others hold the same tokens already.
        """
        at_index = [self.pool.null_block] * self.num_groups
        for manager in self.managers:
            if manager.follows_tokens:
                for group_id in manager.group_ids:
                    at_index[group_id] = blocks.tables[group_id][blocks.num_cached_blocks]
        is_new = self.index.publish_tail(extra_keys, token_bytes, blocks.prefix_id, at_index)
        return [block for block in at_index if is_new and not block.is_null]

    # ---------------------------------------------------------------------------------------------- reports

    def get_block_ids(self, blocks: RequestBlocks) -> BlockIds:
        """The ids in the whole table of each group."""
        return tuple([[block.block_id for block in table] for table in blocks.tables])

    def get_num_common_prefix_blocks(
        self, blocks: RequestBlocks, num_running: int, num_copies: Mapping[int, int]
    ) -> list[int]:
        """Per group, how many leading blocks all `num_running` running requests share, this one included.

        `num_copies` counts, by block id, the references that belong to copies and not to requests.
        """
        counts = [0] * self.num_groups
        if num_running == 1:
            return counts  # it shares with no other request, and counting takes longer with every block
        for manager in self._keeping:
            for group_id in manager.group_ids:
                for block in blocks.tables[group_id]:
                    if block.ref_cnt - num_copies.get(block.block_id, 0) != num_running:
                        break
                    counts[group_id] += 1
        return counts

    def check(self, blocks: RequestBlocks) -> Iterator[KVCacheBlock]:
        """Every block in the request's tables. Raises AssertionError where a count contradicts the tables."""
        num_entries = blocks.num_slots // self.block_size
        for manager, num_skipped in zip(self.managers, blocks.num_skipped, strict=True):
            for group_id in manager.group_ids:
                table = blocks.tables[group_id]
                assert len(table) == num_entries or not manager.follows_tokens, "tables differ in length"
                assert all(block.is_null for block in table[:num_skipped]), (
                    "a request has a block that no token can see"
                )
        in_tables = [block for block in chain(*blocks.tables) if not block.is_null]
        assert blocks.num_blocks == len(in_tables), (
            f"the tables have {len(in_tables)} blocks, not {blocks.num_blocks}"
        )
        return iter(in_tables)

    def _find_prefixes(self, block_hashes: Sequence[BlockHash], max_blocks: int) -> list[CachedPrefix]:
        """For each block of a sequence, the prefix that ends with it, if any group has cached one.

        Where a group keeps all blocks, a walk from the start compares whole sequences and ends at the first
        gap. Otherwise the list has gaps, and a digest alone vouches for the tokens before its block.
        """
        hashes = islice(block_hashes, max_blocks)
        if not self._keeping:
            return [self.index.find(block_hash, None) or self._not_cached for block_hash in hashes]
        prefixes: list[CachedPrefix] = []
        prefix_id = NO_PREFIX
        for block_hash in hashes:
            prefix = self.index.find(block_hash, prefix_id)
            if prefix is None:
                break
            prefixes.append(prefix)
            prefix_id = prefix.prefix_id
        return prefixes

    def _num_new(self, blocks: RequestBlocks, num_tokens: int) -> list[tuple[int, int]]:
        """Per manager, how many entries each of its tables lacks for `num_tokens` tokens, and how many blocks
        these entries need.
        """
        num_encoder_tokens = blocks.request.num_encoder_tokens
        num_new = []
        for manager in self.managers:
            num_entries = manager.num_entries(num_tokens, num_encoder_tokens)
            num_entries -= len(blocks.tables[manager.group_ids[0]])
            num_new.append((num_entries, manager.num_new_blocks(num_entries)))
        return num_new

    def _num_blocks(self, num_new: Sequence[tuple[int, int]]) -> int:
        """The new blocks of all groups together."""
        num_blocks = 0
        for manager, (_, count) in zip(self.managers, num_new, strict=True):
            num_blocks += count * len(manager.group_ids)
        return num_blocks

    def _extend(self, blocks: RequestBlocks, num_tokens: int, num_new: Sequence[tuple[int, int]]) -> BlockIds:
        """Add so many entries and blocks to the tables. Returns the ids of the added blocks, per group."""
        new_blocks = self.pool.get_new_blocks(self._num_blocks(num_new))
        blocks.num_slots = -(-num_tokens // self.block_size) * self.block_size
        blocks.num_blocks += len(new_blocks)
        start = 0
        block_ids: list[list[int]] = [[]] * self.num_groups
        for manager, (num_entries, count) in zip(self.managers, num_new, strict=True):
            nothing, first = [self.pool.null_block] * (num_entries - count), start
            for group_id in manager.group_ids:
                added = nothing + new_blocks[start : start + count]
                start += count
                blocks.tables[group_id].extend(added)
                block_ids[group_id] = [block.block_id for block in added]
            if manager.holds_states:
                self._blocks_to_zero += [block.block_id for block in new_blocks[first:start]]
        return tuple(block_ids)
