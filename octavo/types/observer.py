"""`Observer`: how statistics, events and the like see the core, which knows none of them.

The core calls an observer at a few points and never asks it anything. The arguments belong to the core: an
observer reads them at once, keeps no reference and changes nothing, except the fields of `EngineCoreOutputs`
that are there for it to fill.
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
        """Number of tokens in its prompt."""

    @property
    def num_tokens(self) -> int:
        """Number of known tokens, prompt and output."""

    @property
    def num_computed_tokens(self) -> int:
        """Number of tokens whose KV is in the cache once every planned step has run."""

    @property
    def num_preemptions(self) -> int:
        """How often it has been preempted."""

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; None while it goes on."""


class EngineState(Protocol):
    """How busy the engine is, for an observer that reports it."""

    @property
    def num_running(self) -> int:
        """Number of requests that have blocks."""

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait in a queue."""

    @property
    def usage(self) -> float:
        """Share of the KV cache's blocks that requests have, 0 to 1."""


class StoredBlock(NamedTuple):
    """A full block in the prefix cache."""

    block_hash: bytes  # of its content and of all blocks before it
    parent_block_hash: bytes | None  # None = it is the first of its sequence
    token_bytes: bytes  # its token ids, 4 bytes each, in the machine's order
    extra_keys: bytes  # what its content depends on besides tokens, encoded; empty for plain text
    group_id: int  # KV cache group


class Observer:
    """Does nothing; subclasses override methods. A method must be quick and must not raise."""

    def request_queued(self, request: ObservedRequest) -> None:
        """`request` has been accepted and waits. Each turn of a session is a request."""

    def request_admitted(self, request: ObservedRequest, num_cached_tokens: int) -> None:
        """`request` begins to run, at first or after a preemption. `num_cached_tokens` were hits."""

    def request_preempted(self, request: ObservedRequest) -> None:
        """`request` lost its row and its blocks, and waits again."""

    def request_finished(self, request: ObservedRequest) -> None:
        """`request` has ended, for any reason."""

    def step_planned(self, output: SchedulerOutput) -> None:
        """A step is about to run."""

    def step_done(self, output: SchedulerOutput | None, outputs: EngineCoreOutputs) -> None:
        """A step's results have been taken in, or the step failed. `outputs` goes to the front end next.

        `output` is the step's plan; None = no step was run, for example because planning failed.
        """

    def block_stored(self, stored: StoredBlock) -> None:
        """Requests can hit a full block from now on. It is written, or a planned step writes it."""

    def block_removed(self, block_hash: bytes, group_id: int) -> None:
        """No block of the group has the content with this hash any longer."""

    def all_blocks_cleared(self) -> None:
        """The prefix cache is empty."""

    def close(self) -> None:
        """The engine ends: give back threads, sockets and the like. May be called again."""


NO_OBSERVER = Observer()


class Observers(Observer):
    """Several observers that act as one. Each call goes to all of them in order."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = list(observers)

    def add(self, observer: Observer) -> None:
        """Add an observer that could not be made before the parts that these observers see."""
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
