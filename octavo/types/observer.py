"""`Observer`: the interface through which statistics and events follow the core. The core names no observer.

The core calls an observer at a few points and uses no result of these calls. The arguments belong to the
core: an observer reads them during the call, keeps no reference and changes nothing. The exceptions are the
fields of `EngineCoreOutputs` that observers fill.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from octavo.types.outputs import EngineCoreOutputs, FinishReason
from octavo.types.steps import SchedulerOutput


class ObservedRequest(Protocol):
    """The part of a request that an observer may read."""

    @property
    def request_id(self) -> str:
        """Unique among the requests that are not finished."""

    @property
    def num_prompt_tokens(self) -> int:
        """Number of prompt tokens."""

    @property
    def num_tokens(self) -> int:
        """Number of known tokens, prompt and output together."""

    @property
    def num_computed_tokens(self) -> int:
        """Number of tokens whose KV is in the cache once every planned step has run."""

    @property
    def num_preemptions(self) -> int:
        """Number of times that the request has been preempted."""

    @property
    def finish_reason(self) -> FinishReason | None:
        """Reason for the end of the request; None before the end."""


class EngineState(Protocol):
    """How busy the engine is, for an observer that reports it."""

    @property
    def num_running(self) -> int:
        """Number of requests that are running."""

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait in a queue."""

    @property
    def usage(self) -> float:
        """Share of the KV cache's blocks that requests hold, 0 to 1."""


class StoredBlock(NamedTuple):
    """A full block in the prefix cache."""

    block_hash: bytes  # hash of this block's content and of all blocks before it
    parent_block_hash: bytes | None  # None = the block is the first of its sequence
    token_bytes: bytes  # token ids of the block, 4 bytes each, in the machine's byte order
    extra_keys: bytes  # inputs other than tokens that the content depends on, encoded; empty for plain text
    group_id: int  # KV cache group


class Observer:
    """Ignores every event. Subclasses override methods, which must be quick and must not raise."""

    def request_queued(self, request: ObservedRequest) -> None:
        """A request, or a turn of a session, has been accepted and waits."""

    def request_admitted(self, request: ObservedRequest, num_cached_tokens: int) -> None:
        """A request has been admitted, for the first time or after a preemption.

        `num_cached_tokens` of its tokens are in the prefix cache.
        """

    def request_preempted(self, request: ObservedRequest) -> None:
        """A running request has lost its row and blocks, and waits again."""

    def request_finished(self, request: ObservedRequest) -> None:
        """A request, or a turn of a session, has ended, for any reason."""

    def step_planned(self, output: SchedulerOutput) -> None:
        """A step has been planned and is about to run."""

    def step_done(self, output: SchedulerOutput | None, outputs: EngineCoreOutputs) -> None:
        """The results of a step have been processed, or the step has failed. `outputs` goes to the front end
        next.

        `output` is the plan of the step. It is None if no step ran, for example because planning failed.
        """

    def block_stored(self, stored: StoredBlock) -> None:
        """Requests can hit a full block from now on. The block is written, or a planned step writes it."""

    def block_removed(self, block_hash: bytes, group_id: int) -> None:
        """No block of the group holds the content with this hash any more."""

    def all_blocks_cleared(self) -> None:
        """The prefix cache is empty."""

    def close(self) -> None:
        """Release threads, sockets and other resources, because the engine ends. May be called again."""


NO_OBSERVER = Observer()


class Observers(Observer):
    """Passes each call to several observers, in order."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = list(observers)

    def add(self, observer: Observer) -> None:
        """Add an observer that can only be made after the parts of the engine that call these observers."""
        self._observers.append(observer)

    def request_queued(self, request: ObservedRequest) -> None:
        for observer in self._observers:
            observer.request_queued(request)

    def request_admitted(self, request: ObservedRequest, num_cached_tokens: int) -> None:
        for observer in self._observers:
            observer.request_admitted(request, num_cached_tokens)

    def request_preempted(self, request: ObservedRequest) -> None:
        for observer in self._observers:
            observer.request_preempted(request)

    def request_finished(self, request: ObservedRequest) -> None:
        for observer in self._observers:
            observer.request_finished(request)

    def step_planned(self, output: SchedulerOutput) -> None:
        for observer in self._observers:
            observer.step_planned(output)

    def step_done(self, output: SchedulerOutput | None, outputs: EngineCoreOutputs) -> None:
        for observer in self._observers:
            observer.step_done(output, outputs)

    def block_stored(self, stored: StoredBlock) -> None:
        for observer in self._observers:
            observer.block_stored(stored)

    def block_removed(self, block_hash: bytes, group_id: int) -> None:
        for observer in self._observers:
            observer.block_removed(block_hash, group_id)

    def all_blocks_cleared(self) -> None:
        for observer in self._observers:
            observer.all_blocks_cleared()

    def close(self) -> None:
        for observer in self._observers:
            observer.close()
