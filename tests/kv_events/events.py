"""Random histories of a prefix cache, told to an observer, and subscribers that are read to the end."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from octavo.config import EngineConfig, ObservationConfig
from octavo.kv_events.observer import KVEventsObserver
from octavo.kv_events.subscriber import CachedBlocks, KVEventsSubscriber
from octavo.types.observer import StoredBlock
from octavo.types.outputs import EngineCoreOutputs, SchedulerStats
from octavo.types.steps import CachedRequestData, SchedulerOutput

NOTHING_PLANNED = SchedulerOutput(
    scheduled_new_reqs=[],
    scheduled_cached_reqs=CachedRequestData([], []),
    num_scheduled_tokens={},
    total_num_scheduled_tokens=0,
    finished_req_ids=set(),
    preempted_req_ids=set(),
    num_common_prefix_blocks=[],
)


def make_config(endpoint: str = "tcp://127.0.0.1:*", **settings: Any) -> ObservationConfig:
    """KV events at `endpoint`, with replays at a port of this machine; `settings` are further ones."""
    given = {"kv_events_endpoint": endpoint, "kv_events_replay_endpoint": "tcp://127.0.0.1:*", **settings}
    return EngineConfig.from_settings(**given).observation


@contextmanager
def publishing(*arguments: Any, **settings: Any) -> Iterator[KVEventsObserver]:
    """An observer with the configuration of `make_config`, closed at the end."""
    observer = KVEventsObserver(make_config(*arguments, **settings))
    try:
        yield observer
    finally:
        observer.close()


def subscribe(observer: KVEventsObserver, next_sequence: int | None = None) -> KVEventsSubscriber:
    """A subscriber to what `observer` publishes."""
    return KVEventsSubscriber(observer.endpoint, observer.replay_endpoint, next_sequence=next_sequence)


def make_stored(
    name: int, parent: int | None = None, group_id: int = 0, extra_keys: bytes = b""
) -> StoredBlock:
    """A block of four tokens; `name` stands for its content and `parent` for that of the block before it."""
    parent_hash = None if parent is None else hash_of(parent)
    tokens = array("i", [name * 4 + place for place in range(4)]).tobytes()
    return StoredBlock(hash_of(name), parent_hash, tokens, extra_keys, group_id)


def hash_of(name: int) -> bytes:
    """The hash that stands for a block's content."""
    return name.to_bytes(32, "big")


def end_step(observer: KVEventsObserver) -> None:
    """The step in which all this happened is done."""
    observer.step_done(NOTHING_PLANNED, EngineCoreOutputs([], SchedulerStats(0, 0, 0.0)))


class History:
    """Blocks coming and going at random, and which of them are there."""

    def __init__(self, observer: KVEventsObserver, seed: int = 0) -> None:
        self.observer = observer
        self.random = random.Random(seed)
        self.blocks: set[tuple[bytes, int]] = set()

    def run_step(self) -> None:
        """A step with a few events, or none, of two KV cache groups."""
        for _ in range(self.random.randrange(8)):
            self._happen()
        end_step(self.observer)

    def _happen(self) -> None:
        name, group_id = self.random.randrange(100), self.random.randrange(2)
        key = (hash_of(name), group_id)
        if self.random.random() < 0.01:
            self.blocks.clear()
            self.observer.all_blocks_cleared()
        elif key in self.blocks:
            self.blocks.remove(key)
            self.observer.block_removed(*key)
        else:
            self.blocks.add(key)
            self.observer.block_stored(make_stored(name, name - 1 if name else None, group_id))


def follow(subscriber: KVEventsSubscriber, cached: CachedBlocks, observer: KVEventsObserver) -> None:
    """Read until nothing is due any more."""
    for _ in range(100_000):
        if subscriber.next_sequence == observer.next_sequence:
            return
        for batch in subscriber.read(timeout_s=0.01):
            cached.apply(batch)
    raise AssertionError(f"{observer.next_sequence - (subscriber.next_sequence or 0)} batches never came")
