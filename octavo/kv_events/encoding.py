"""A step's events as the bytes that are published. Runs of one sequence's blocks become one event."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import msgspec

from octavo.kv_events.journal import Event, RemovedBlock, Snapshot, Step
from octavo.types.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from octavo.types.observer import StoredBlock

_encoder = msgspec.msgpack.Encoder()


def encode_step(step: Step) -> bytes:
    """A step as a `KVEventBatch`."""
    return _encode(step.timestamp, step.events)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """A snapshot as a `KVEventBatch` that makes its content of whatever the reader had before."""
    return _encode(snapshot.timestamp, [AllBlocksCleared(), *snapshot.blocks])


def _encode(timestamp: float, events: Iterable[Event]) -> bytes:
    merged: list[BlockStored | BlockRemoved | AllBlocksCleared] = []
    for event in events:
        last = merged[-1] if merged else None
        match event:
            case StoredBlock():
                if not (isinstance(last, BlockStored) and _continues(last, event)):
                    merged.append(last := _begin_run(event))
                last.block_hashes.append(event.block_hash)
                last.token_ids += array("i", event.token_bytes)
                last.extra_keys.append((event.extra_keys,) if event.extra_keys else None)
            case RemovedBlock():
                if not (isinstance(last, BlockRemoved) and last.group_idx == event.group_id):
                    merged.append(last := BlockRemoved(block_hashes=[], group_idx=event.group_id))
                last.block_hashes.append(event.block_hash)
            case AllBlocksCleared():
                merged.append(event)
    return _encoder.encode(KVEventBatch(timestamp, merged))


def _begin_run(stored: StoredBlock) -> BlockStored:
    """A run of blocks, empty yet, that `stored` will be the first of."""
    return BlockStored(
        block_hashes=[],
        parent_block_hash=stored.parent_block_hash,
        token_ids=[],
        block_size=len(stored.token_bytes) // array("i").itemsize,
        group_idx=stored.group_id,
        extra_keys=[],
    )


def _continues(run: BlockStored, stored: StoredBlock) -> bool:
    return run.group_idx == stored.group_id and run.block_hashes[-1] == stored.parent_block_hash
