"""What the fake executor does for a group of each kind of KV cache: where it reads, and where it writes.

It decides by the model's rules alone what must be there, and asks nothing of the core's managers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from octavo.types.kv import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    LatentAttentionSpec,
    RecurrentStateSpec,
    SlidingWindowSpec,
)

GARBAGE = None  # KV that was never written
SPOILED = "spoiled"  # KV that a failed step left behind, or that was computed from such KV
ZERO = 0

Memory = list[list[int | str | None]]  # by block and slot


class Row(Protocol):
    """What there is to know of a request."""

    req_id: str
    prefixes: list[int]  # the identity of each beginning of its tokens
    is_void: bool  # what it computes is garbage, and the core must not use it


class Share(NamedTuple):
    """What a step runs of a request, in one group."""

    row: Row
    table: list[int]
    start: int
    stop: int


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

    def may_share(self, index: int, stop: int) -> bool:
        """Whether a step up to `stop` may write to entry `index` of a table while other requests have the
        block: only if it fills the block, so that nobody writes there again.
        """
        return (index + 1) * self.block_size <= stop

    def forward(self, kv: Memory, shares: Sequence[Share]) -> None:
        """One layer of a step: write the tokens of all rows to the cache, then read the context of each."""
        self.write(kv, shares)
        self.read(kv, shares)

    def write(self, kv: Memory, shares: Sequence[Share]) -> None:
        """Write what the step computes."""
        size = self.block_size
        written: set[tuple[int, int]] = set()
        for row, table, start, stop in shares:
            for position in range(start, stop):
                slot = table[position // size], position % size
                assert slot not in written, f"{row.req_id} writes where another request writes"
                written.add(slot)
                kv[slot[0]][slot[1]] = SPOILED if row.is_void else row.prefixes[position]

    def read(self, kv: Memory, shares: Sequence[Share]) -> None:
        """Read what the step computes from. A row that reads spoiled KV is void from then on."""
        size = self.block_size
        for row, table, start, stop in shares:
            seen = range(self.first_seen(start), stop)
            context = [kv[table[position // size]][position % size] for position in seen]
            self.compare(row, context, row.prefixes[seen.start : stop])

    def compare(self, row: Row, context: list[int | str | None], expected: list[int] | list[str]) -> None:
        if SPOILED in context:
            row.is_void = True
        if not row.is_void:
            assert context == expected, f"{row.req_id} sees a context that is not its own"

    def spoil(self, kv: Memory, table: list[int], start: int, stop: int) -> None:
        """Leave garbage instead of what a step wrote."""
        for position in range(start, stop):
            kv[table[position // self.block_size]][position % self.block_size] = SPOILED


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
    """A block's first entry is a state: the identity of all that was before.

    Rows pass their states on independently of each other, so none finds what another writes in the same step.
    """

    def num_skipped(self, num_computed: int) -> int:
        return max(num_computed - 1, 0) // self.block_size

    def written(self, start: int, stop: int, num_entries: int) -> range:
        last = (stop - 1) // self.block_size
        return range(last, last + 1)

    def may_share(self, index: int, stop: int) -> bool:
        return False

    def forward(self, kv: Memory, shares: Sequence[Share]) -> None:
        self.read(kv, shares)
        self.write(kv, shares)

    def read(self, kv: Memory, shares: Sequence[Share]) -> None:
        for row, table, start, stop in shares:
            target = table[(stop - 1) // self.block_size]
            source = table[(start - 1) // self.block_size] if start else target
            assert row.is_void or source == target or kv[target][0] == ZERO, (
                "a new state's block is not zeroed"
            )
            self.compare(row, [kv[source][0]], row.prefixes[start - 1 : start] if start else [ZERO])

    def write(self, kv: Memory, shares: Sequence[Share]) -> None:
        for row, table, _, stop in shares:
            kv[table[(stop - 1) // self.block_size]][0] = SPOILED if row.is_void else row.prefixes[stop - 1]

    def spoil(self, kv: Memory, table: list[int], start: int, stop: int) -> None:
        kv[table[(stop - 1) // self.block_size]][0] = SPOILED


class FakeCross(FakeGroup):
    """Blocks that a request writes in its first step, and has for itself."""

    def written(self, start: int, stop: int, num_entries: int) -> range:
        return range(num_entries)

    def may_share(self, index: int, stop: int) -> bool:
        return False

    def write(self, kv: Memory, shares: Sequence[Share]) -> None:
        for row, table, start, _ in shares:
            for block_id in table if start == 0 else ():
                kv[block_id][0] = SPOILED if row.is_void else row.req_id

    def read(self, kv: Memory, shares: Sequence[Share]) -> None:
        for row, table, _, _ in shares:
            for block_id in table:
                self.compare(row, [kv[block_id][0]], [row.req_id])

    def spoil(self, kv: Memory, table: list[int], start: int, stop: int) -> None:
        for block_id in table:
            kv[block_id][0] = SPOILED


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
