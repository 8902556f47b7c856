"""`PlannedWrites`: the published blocks that steps still have to write, and the requests that rely on them.

A block is published when the step that fills it is planned. Until the results of that step are in, the block
may turn out to hold garbage: the step may fail, or a request's logits may not be finite. Then the block must
be forgotten, and so must everything that was computed from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from octavo.kv_cache.block import KVCacheBlock
from octavo.kv_cache.request_blocks import RequestBlocks


class PlannedWrite:
    """What one step writes for one request into published blocks."""

    __slots__ = ("blocks", "in_plan", "readers", "start", "writer")

    def __init__(self, writer: RequestBlocks, blocks: Sequence[KVCacheBlock], start: int) -> None:
        self.writer = writer
        self.blocks = blocks
        self.start = start  # the first of the request's tokens that the step runs
        self.readers: tuple[
            RequestBlocks, ...
        ] = ()  # requests that hit these blocks before they were written
        self.in_plan = True  # its step is still being planned


class FailedWrites(NamedTuple):
    """The consequences of a failure."""

    blocks: list[KVCacheBlock]  # published blocks that hold garbage
    readers: list[RequestBlocks]  # requests that computed something from such blocks


NO_FAILURE = FailedWrites([], [])


class PlannedWrites:
    """The writes of the step that is being planned and of all steps in flight."""

    def __init__(self) -> None:
        self._plan: list[PlannedWrite] = []  # of the step that is being planned
        self._in_flight: dict[int, list[PlannedWrite]] = {}  # by the step's number
        self._of_block: dict[KVCacheBlock, PlannedWrite] = {}

    def add(self, writer: RequestBlocks, blocks: Sequence[KVCacheBlock], start: int) -> None:
        """The step that is being planned writes the rest of `blocks`, which were just published: the
        request's tokens from `start` on.
        """
        write = PlannedWrite(writer, blocks, start)
        self._plan.append(write)
        for block in blocks:
            self._of_block[block] = write

    def add_reader(self, reader: RequestBlocks, blocks: Iterable[KVCacheBlock]) -> None:
        """Note that a request has hit `blocks`."""
        if self._of_block:
            for block in blocks:
                write = self._of_block.get(block)
                if write is not None and reader not in write.readers:
                    write.readers += (reader,)

    def are_in_plan(self, blocks: Iterable[KVCacheBlock], num_tokens: int) -> bool:
        """Whether the step that is being planned writes some of the sequence's first `num_tokens` tokens to
        `blocks`. Then the step cannot copy these tokens.
        """
        writes = map(self._of_block.get, blocks) if self._plan else ()
        return any(write is not None and write.in_plan and write.start < num_tokens for write in writes)

    def start_step(self, step: int) -> None:
        """Note that the plan is complete, and is that of step number `step`."""
        if self._plan:
            for write in self._plan:
                write.in_plan = False
            self._in_flight[step] = self._plan
            self._plan = []

    def finish_step(self, step: int, is_bad: Callable[[str], bool]) -> FailedWrites:
        """Drop the writes of a step that has run, and find the consequences of its garbage.

        `is_bad` tells for a request id whether the request wrote garbage in the step.
        """
        if step not in self._in_flight:
            return NO_FAILURE  # it filled no block, like most steps of few requests
        writes = self._in_flight[step]
        bad = [write.writer for write in writes if is_bad(write.writer.request.request_id)]
        failed = self._fail(bad) if bad else NO_FAILURE
        for write in self._in_flight.pop(step):
            self._forget(write)
        return failed

    def fail(self) -> FailedWrites:
        """A step could not be planned, or the oldest step in flight has failed: none of the writes count."""
        writes = [*chain(*self._in_flight.values()), *self._plan]
        blocks, readers = list(self._of_block), chain(*[write.readers for write in writes])
        self._plan = []
        self._in_flight.clear()
        self._of_block.clear()
        return FailedWrites(blocks, list(dict.fromkeys(readers)))

    def _fail(self, writers: list[RequestBlocks]) -> FailedWrites:
        """All that `writers` write is garbage, and all that the readers of garbage write."""
        bad, blocks = dict.fromkeys(writers), []
        pending = list(bad)
        while pending:
            writer = pending.pop()
            for writes in self._in_flight.values():
                for write in [each for each in writes if each.writer is writer]:
                    writes.remove(write)
                    blocks += self._forget(write)
                    pending += [each for each in write.readers if each not in bad]
                    bad |= dict.fromkeys(write.readers)
        return FailedWrites(blocks, [each for each in bad if each not in writers])

    def _forget(self, write: PlannedWrite) -> list[KVCacheBlock]:
        """The write is over. Returns its blocks, without those that belong to a later write."""
        blocks = [block for block in write.blocks if self._of_block.get(block) is write]
        for block in blocks:
            del self._of_block[block]
        return blocks
