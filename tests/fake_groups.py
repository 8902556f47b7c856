"""What the fake executor does for a group of each kind of KV cache: where it reads, and where it writes.

It decides by the model's rules alone what must be there, and asks nothing of the core's managers.
"""

from __future__ import annotations

from typing import Protocol

from octavo.types.kv import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    LatentAttentionSpec,
    RecurrentStateSpec,
    SlidingWindowSpec,
)

GARBAGE = None  # KV that was never written, or that a failed step left behind
ZERO = 0

Memory = list[list[int | str | None]]  # by block and slot


class Row(Protocol):
    """What there is to know of a request."""

    req_id: str
    prefixes: list[int]  # the identity of each beginning of its tokens


class FakeGroup:
    """Attention. A block has an entry for each token, the identity of the token's prefix."""

    def __init__(self, spec: KVCacheSpec) -> None:
        self.spec = spec
        self.block_size = spec.block_size

    def first_seen(self, num_computed: int) -> int:
        """The first position that the token after `num_computed` tokens sees."""
        return 0

    def num_skipped(self, num_computed: int) -> int:
        """Blocks that are out of sight from then on."""
        return self.first_seen(num_computed) // self.block_size

    def written(self, start: int, stop: int, num_entries: int) -> range:
        """The entries of a table that a step from `start` to `stop` writes to."""
        return range(start // self.block_size, -(-stop // self.block_size))

    def forward(self, kv: Memory, row: Row, table: list[int], start: int, stop: int) -> None:
        """Read the context from the cache, and write the step's tokens to it."""
        size = self.block_size
        seen = range(self.first_seen(start), start)
        context = [kv[table[position // size]][position % size] for position in seen]
        assert context == row.prefixes[seen.start : start], f"{row.req_id} sees a context that is not its own"
        for position in range(start, stop):
            kv[table[position // size]][position % size] = row.prefixes[position]

    def spoil(self, kv: Memory, table: list[int], start: int, stop: int) -> None:
        """Leave garbage instead of what a step wrote."""
        for position in range(start, stop):
            kv[table[position // self.block_size]][position % self.block_size] = GARBAGE


class FakeWindow(FakeGroup):
    """Sees the last tokens."""

    spec: SlidingWindowSpec

    def first_seen(self, num_computed: int) -> int:
        return max(num_computed + 1 - self.spec.window, 0)


class FakeChunk(FakeGroup):
    """Sees its own chunk."""

    spec: ChunkedLocalAttentionSpec

    def first_seen(self, num_computed: int) -> int:
        return num_computed - num_computed % self.spec.chunk_size


class FakeRecurrence(FakeGroup):
    """A block's first entry is a state: the identity of all that was before."""

    def num_skipped(self, num_computed: int) -> int:
        return max(num_computed - 1, 0) // self.block_size

    def written(self, start: int, stop: int, num_entries: int) -> range:
        last = (stop - 1) // self.block_size
        return range(last, last + 1)

    def forward(self, kv: Memory, row: Row, table: list[int], start: int, stop: int) -> None:
        target = table[(stop - 1) // self.block_size]
        source = table[(start - 1) // self.block_size] if start else target
        assert source == target or kv[target][0] == ZERO, "a new state's block is not zeroed"
        expected = row.prefixes[start - 1] if start else ZERO
        assert kv[source][0] == expected, f"{row.req_id} goes on from a state that is not its own"
        kv[target][0] = row.prefixes[stop - 1]

    def spoil(self, kv: Memory, table: list[int], start: int, stop: int) -> None:
        kv[table[(stop - 1) // self.block_size]][0] = GARBAGE


class FakeCross(FakeGroup):
    """Blocks that a request writes in its first step, and has for itself."""

    def written(self, start: int, stop: int, num_entries: int) -> range:
        return range(num_entries)

    def forward(self, kv: Memory, row: Row, table: list[int], start: int, stop: int) -> None:
        for block_id in table:
            if start == 0:
                kv[block_id][0] = row.req_id
            assert kv[block_id][0] == row.req_id, f"{row.req_id} sees an input that is not its own"

    def spoil(self, kv: Memory, table: list[int], start: int, stop: int) -> None:
        for block_id in table:
            kv[block_id][0] = GARBAGE


def make_fake_group(spec: KVCacheSpec) -> FakeGroup:
    """What a worker does for a group of this kind."""
    kinds: dict[type[KVCacheSpec], type[FakeGroup]] = {
        FullAttentionSpec: FakeGroup,
        LatentAttentionSpec: FakeGroup,
        SlidingWindowSpec: FakeWindow,
        ChunkedLocalAttentionSpec: FakeChunk,
        RecurrentStateSpec: FakeRecurrence,
        CrossAttentionSpec: FakeCross,
    }
    return kinds[type(spec)](spec)
