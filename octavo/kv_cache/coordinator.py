"""`KVCacheCoordinator`: the groups of one cache, acting as one.

A request has blocks in every group or in none; a prefix counts as cached only as far as all groups have it.
Blocks are of one size, so the tables of all groups that follow tokens are equally long, and whether a request
needs anything at all is one comparison, whatever the number of groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, compress, islice
from typing import NamedTuple

from octavo.kv_cache.block import NO_PREFIX, CachedPrefix, KVCacheBlock
from octavo.kv_cache.block_pool import BlockPool
from octavo.kv_cache.hashing import NO_DIGEST, BlockHash
from octavo.kv_cache.prefix_index import PrefixIndex
from octavo.kv_cache.retention import Retention
from octavo.kv_cache.single_type_kv_cache_manager import MANAGERS
from octavo.types.kv import KVCacheConfig, KVCacheSpec
from octavo.types.observer import Observer
from octavo.types.steps import BlockIds


class CacheHit(NamedTuple):
    """A beginning of a sequence found in the prefix cache. Valid until any block changes hands."""

    blocks: tuple[list[KVCacheBlock], ...]  # per group, full ones; the null block where none is needed
    num_tokens: int
    prefix_id: int = NO_PREFIX  # of the full blocks
    # Per group a block that begins with the rest of the tokens; empty where they end with a full block. It
    # holds other tokens besides, so what is used is a copy.
    sources: tuple[KVCacheBlock, ...] = ()


class RequestBlocks:
    """What one request holds. Mutable."""

    __slots__ = (
        "is_written",
        "num_cached_blocks",
        "num_held",
        "num_prompt_tokens",
        "num_reserved",
        "num_skipped",
        "num_slots",
        "prefix_id",
        "tables",
    )

    def __init__(
        self, hit: CacheHit, block_size: int, num_skipped: list[int], num_prompt_tokens: int
    ) -> None:
        num_blocks = hit.num_tokens // block_size
        self.num_prompt_tokens = num_prompt_tokens  # those it began with, whoever wrote them
        self.tables = tuple([list(blocks) for blocks in hit.blocks])
        self.num_slots = num_blocks * block_size  # tokens that the tables have room for
        self.num_skipped = num_skipped  # per manager the leading entries of its tables that have no block
        self.num_held = sum(not block.is_null for block in chain(*self.tables))  # blocks in all tables
        self.num_reserved = 0  # blocks it may hold at once before its prompt is done; 0 = it is done
        self.num_cached_blocks = num_blocks  # leading full blocks that the prefix cache was told of
        self.prefix_id = hit.prefix_id  # of those
        self.is_written = True  # what it began with is in its blocks; not before a step has made the copies

    @property
    def num_promised(self) -> int:
        """Blocks that it may still ask for, and that nobody else should be admitted on."""
        return max(self.num_reserved - self.num_held, 0)


class KVCacheCoordinator:
    """Asks each kind's manager and combines the answers. All groups share a pool and a block size."""

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
        self._keeping = [manager for manager in self.managers if manager.keeps_all_blocks]
        self._trimming = [manager for manager in self.managers if not manager.keeps_all_blocks]
        num_cached_groups = sum(len(manager.group_ids) for manager in self.managers if manager.follows_tokens)
        self.index = PrefixIndex(self.num_groups, num_cached_groups, observer)
        self.pool = BlockPool(config.num_blocks, self.index)
        self._retention = Retention(retention_interval, self.block_size)
        self._not_cached = CachedPrefix(BlockHash(NO_DIGEST, b"", b""), NO_PREFIX, NO_PREFIX, self.num_groups)
        self._blocks_to_zero: list[int] = []

    @property
    def holds_states(self) -> bool:
        """Whether blocks of any group are states: then a hit ends with a block, and so should steps."""
        return any(manager.holds_states for manager in self.managers)

    @property
    def sees_encoder(self) -> bool:
        """Whether any group holds something else than the tokens' KV."""
        return not all(manager.follows_tokens for manager in self.managers)

    # ------------------------------------------------------------------------------------------------- hits

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_blocks: int
    ) -> list[CachedPrefix]:
        """The prefixes, block by block, of the longest cached beginning that all groups have, of at most
        `max_blocks` blocks. Pure.

        Each group may shorten the candidate, which the others must then confirm: repeated until all agree.
        Those that keep all blocks need not be asked again, since they have all that is shorter too.
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
                length -= 1  # nobody is known to have come so far, whether or not anything of it is needed
        return prefixes[:length]

    def make_hit(self, prefixes: Sequence[CachedPrefix], head: tuple[CachedPrefix, int] | None) -> CacheHit:
        """The hit that consists of whole blocks and, if there is one, of the `head` of so many tokens of
        another block.
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
        """Blocks of a hit that never cost its request a free block: others hold them, and it keeps them.

        What slides out of the request's sight does not count. It is given back, but is not free as long as
        the others hold it, and the request may ask for another block in its place.
        """
        kept = [hit.blocks[group_id] for manager in self._keeping for group_id in manager.group_ids]
        return sum([block.ref_cnt > 0 for block in chain(*kept)])

    # ----------------------------------------------------------------------------------------------- blocks

    def num_blocks_for(self, num_tokens: int, num_encoder_tokens: int) -> int:
        """Blocks that a request holds at once, at most, on its way to `num_tokens` tokens."""
        return sum(
            [
                manager.num_blocks_for(num_tokens, num_encoder_tokens, self.max_chunk)
                * len(manager.group_ids)
                for manager in self.managers
            ]
        )

    def start(
        self, hit: CacheHit, num_tokens: int, num_prompt_tokens: int, num_encoder_tokens: int
    ) -> RequestBlocks | None:
        """Tables that begin with the hit and hold `num_tokens` tokens, and a reference to each source of the
        hit besides. None, changing nothing, where there are too few free blocks.
        """
        num_blocks = hit.num_tokens // self.block_size
        num_skipped = [
            min(manager.num_skipped_blocks(hit.num_tokens), num_blocks) for manager in self.managers
        ]
        held = RequestBlocks(hit, self.block_size, num_skipped, num_prompt_tokens)
        adopted = [block for block in chain(*hit.blocks, hit.sources) if not block.is_null]
        num_new = self._num_new(held, num_tokens, num_encoder_tokens)
        num_unheld = sum([block.ref_cnt == 0 for block in adopted])
        if self._num_blocks(num_new) + num_unheld > self.pool.num_free_blocks:
            return None
        self.pool.touch(adopted)  # before anything is taken, and with it perhaps evicted
        self._extend(held, num_tokens, num_new)
        return held

    def allocate_new_blocks(
        self, held: RequestBlocks, num_tokens: int, num_encoder_tokens: int
    ) -> BlockIds | None:
        """Extend the tables to hold `num_tokens` tokens; per group the ids of what was added. None, changing
        nothing, where there are too few free blocks.
        """
        num_new = self._num_new(held, num_tokens, num_encoder_tokens)
        if self._num_blocks(num_new) > self.pool.num_free_blocks:
            return None
        return self._extend(held, num_tokens, num_new)

    def remove_skipped_blocks(self, held: RequestBlocks, num_computed_tokens: int) -> None:
        """Give back the blocks that no later token of the request can see, last first; some are forgotten."""
        skipped: list[KVCacheBlock] = []
        for number, manager in enumerate(self.managers):
            start, stop = held.num_skipped[number], manager.num_skipped_blocks(num_computed_tokens)
            if start < stop:
                held.num_skipped[number] = stop
                nothing = [self.pool.null_block] * (stop - start)
                is_forgotten = [
                    not self._retention.keeps(manager, index, held.num_prompt_tokens)
                    for index in range(start, stop)
                ]
                for group_id in manager.group_ids:
                    table = held.tables[group_id]
                    skipped += table[start:stop]
                    self.pool.forget(compress(table[start:stop], is_forgotten))
                    table[start:stop] = nothing
        if skipped:
            skipped = [block for block in reversed(skipped) if not block.is_null]
            self.pool.free_blocks(skipped)
            held.num_held -= len(skipped)

    def take_blocks_to_zero(self) -> list[int]:
        """The new blocks since the last call that must not show what they held before."""
        taken, self._blocks_to_zero = self._blocks_to_zero, []
        return taken

    def free(self, held: RequestBlocks) -> None:
        """Give back everything, last first and no group before another: beginnings of sequences stay cached
        longest, in all groups alike.
        """
        for follows_tokens in (True, False):
            tables = [
                held.tables[group_id]
                for manager in self.managers
                if manager.follows_tokens is follows_tokens
                for group_id in manager.group_ids
            ]
            self.pool.free_blocks(chain.from_iterable(zip(*map(reversed, tables), strict=True)))

    # ------------------------------------------------------------------------------------------ publication

    def cache_blocks(
        self, held: RequestBlocks, block_hashes: Sequence[BlockHash], num_computed_tokens: int
    ) -> None:
        """Publish the full blocks among the first `num_computed_tokens` tokens, which are computed.

        All blocks with one index stand for one prefix, also where some have slid out of sight.
        """
        num_full = num_computed_tokens // self.block_size
        for index in range(held.num_cached_blocks, num_full):
            blocks = [self.pool.null_block] * self.num_groups
            for manager in self.managers:
                if manager.can_cache(index, num_computed_tokens):
                    for group_id in manager.group_ids:
                        blocks[group_id] = held.tables[group_id][index]
            parent_digest = block_hashes[index - 1].digest if index else None
            held.prefix_id = self.index.publish(block_hashes[index], held.prefix_id, parent_digest, blocks)
        held.num_cached_blocks = num_full

    def cache_tail(self, held: RequestBlocks, extra_keys: bytes, token_bytes: bytes) -> None:
        """Publish the tokens after the published full blocks, the first of a block that is not full."""
        blocks = [self.pool.null_block] * self.num_groups
        for manager in self.managers:
            if manager.follows_tokens:
                for group_id in manager.group_ids:
                    blocks[group_id] = held.tables[group_id][held.num_cached_blocks]
        self.index.publish_tail(extra_keys, token_bytes, held.prefix_id, blocks)

    # ---------------------------------------------------------------------------------------------- reports

    def get_block_ids(self, held: RequestBlocks) -> BlockIds:
        """Per group the ids of the whole table."""
        return tuple([[block.block_id for block in table] for table in held.tables])

    def get_num_common_prefix_blocks(
        self, held: RequestBlocks, num_running: int, num_copies: Mapping[int, int]
    ) -> list[int]:
        """Per group the leading blocks that all `num_running` running requests hold.

        `num_copies`: by block id, the references that are no request's.
        """
        counts = [0] * self.num_groups
        if num_running == 1:
            return counts  # there is nobody to share with, and counting would take longer with every block
        for manager in self._keeping:
            for group_id in manager.group_ids:
                for block in held.tables[group_id]:
                    if block.ref_cnt - num_copies.get(block.block_id, 0) != num_running:
                        break
                    counts[group_id] += 1
        return counts

    def check(self, held: RequestBlocks) -> Iterator[KVCacheBlock]:
        """Every block in the request's tables. Raises AssertionError where what is known of them is wrong."""
        num_entries = held.num_slots // self.block_size
        for manager, num_skipped in zip(self.managers, held.num_skipped, strict=True):
            for group_id in manager.group_ids:
                table = held.tables[group_id]
                assert len(table) == num_entries or not manager.follows_tokens, "tables differ in length"
                assert all(block.is_null for block in table[:num_skipped]), "a block out of sight is held"
        blocks = [block for block in chain(*held.tables) if not block.is_null]
        assert held.num_held == len(blocks), f"{len(blocks)} blocks are held, not {held.num_held}"
        return iter(blocks)

    def _find_prefixes(self, block_hashes: Sequence[BlockHash], max_blocks: int) -> list[CachedPrefix]:
        """What is cached, by any group, of a sequence's beginnings, block by block.

        Where a group keeps all blocks a walk from the start establishes each prefix exactly, and ends at the
        first gap. Elsewhere gaps are no end, and the digest has to vouch for what lies before a block.
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

    def _num_new(
        self, held: RequestBlocks, num_tokens: int, num_encoder_tokens: int
    ) -> list[tuple[int, int]]:
        """Per manager, the entries that each of its tables lacks for `num_tokens` tokens, and the blocks that
        these take.
        """
        num_new = []
        for manager in self.managers:
            num_entries = manager.num_entries(num_tokens, num_encoder_tokens)
            num_entries -= len(held.tables[manager.group_ids[0]])
            num_new.append((num_entries, manager.num_new_blocks(num_entries)))
        return num_new

    def _num_blocks(self, num_new: Sequence[tuple[int, int]]) -> int:
        """The blocks of all groups together."""
        num_blocks = 0
        for manager, (_, count) in zip(self.managers, num_new, strict=True):
            num_blocks += count * len(manager.group_ids)
        return num_blocks

    def _extend(self, held: RequestBlocks, num_tokens: int, num_new: Sequence[tuple[int, int]]) -> BlockIds:
        """Add so many entries and blocks to the tables; per group the ids of what was added."""
        blocks = self.pool.get_new_blocks(self._num_blocks(num_new))
        held.num_slots = -(-num_tokens // self.block_size) * self.block_size
        held.num_held += len(blocks)
        start = 0
        block_ids: list[list[int]] = [[]] * self.num_groups
        for manager, (num_entries, count) in zip(self.managers, num_new, strict=True):
            nothing, first = [self.pool.null_block] * (num_entries - count), start
            for group_id in manager.group_ids:
                added = nothing + blocks[start : start + count]
                start += count
                held.tables[group_id].extend(added)
                block_ids[group_id] = [block.block_id for block in added]
            if manager.holds_states:
                self._blocks_to_zero += [block.block_id for block in blocks[first:start]]
        return tuple(block_ids)
