"""`RequestBlocks`: the blocks of a running request. `CacheHit`: the cached blocks that it can begin with."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple, Protocol

from octavo.kv_cache.block import NO_PREFIX, KVCacheBlock
from octavo.kv_cache.hashing import HashedRequest


class CacheableRequest(HashedRequest, Protocol):
    """What the cache reads of a request. It appends to `block_hashes` and changes nothing else."""

    request_id: str
    num_computed_tokens: int
    num_drafts_in_flight: int  # of the computed tokens, the last ones: they may be rejected
    num_encoder_tokens: int  # of another input, which cross attention sees
    skip_reading_prefix_cache: bool


class CacheHit(NamedTuple):
    """A beginning of a sequence that was found in the prefix cache. Valid until any block changes hands."""

    blocks: tuple[list[KVCacheBlock], ...]  # per group, full blocks; the null block where none is needed
    num_tokens: int
    prefix_id: int = NO_PREFIX  # of the full blocks
    # Per group, a block that begins with the rest of the tokens; empty where a full block ends the hit.
    # The block holds other tokens too, so the request gets a copy of it.
    sources: tuple[KVCacheBlock, ...] = ()
    # A request that would run at most this many tokens after the hit does better to wait for the next step:
    # another request's share of the step that is being planned computes them. 0 = nothing to wait for.
    num_coming_tokens: int = 0

    def get_all_blocks(self) -> list[KVCacheBlock]:
        """Every block that the hit needs, sources included."""
        return [block for block in chain(*self.blocks, self.sources) if not block.is_null]


class RequestBlocks:
    """The blocks that one request has. Mutable."""

    __slots__ = (
        "is_written",
        "num_blocks",
        "num_cached_blocks",
        "num_prompt_tokens",
        "num_reserved",
        "num_skipped",
        "num_slots",
        "prefix_id",
        "request",
        "tables",
    )

    def __init__(
        self, request: CacheableRequest, hit: CacheHit, block_size: int, num_skipped: list[int]
    ) -> None:
        num_hit_blocks = hit.num_tokens // block_size
        self.request = request
        self.num_prompt_tokens = len(request.token_ids)  # the tokens it started with
        self.tables = tuple([list(blocks) for blocks in hit.blocks])
        self.num_slots = num_hit_blocks * block_size  # tokens that the tables can hold
        self.num_skipped = num_skipped  # per manager, the leading entries of its tables that have no block
        self.num_blocks = sum(not block.is_null for block in chain(*self.tables))  # in all tables
        self.num_reserved = 0  # most blocks it may have at once before its prompt is done; 0 = it is done
        self.num_cached_blocks = num_hit_blocks  # leading full blocks that were published
        self.prefix_id = hit.prefix_id  # of those
        self.is_written = True  # False until the step that copies the hit's sources has run

    @property
    def num_promised(self) -> int:
        """Blocks that the request may still ask for. No other request is admitted on them."""
        return max(self.num_reserved - self.num_blocks, 0)
