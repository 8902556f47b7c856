"""A step's events as the bytes that are published. Runs of one sequence's blocks become one event."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable

import msgspec

from octavo.kv_events.journal import Event, RemovedBlock, Snapshot, Step
from octavo.types.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from octavo.types.observer import StoredBlock

# Blocks of a snapshot that are encoded in one go, which takes about 2 ms, and the rest after them.
PIECE = 400
PAUSE_S = 0.0005

_encoder = msgspec.msgpack.Encoder()


def encode_step(step: Step) -> bytes:
    """A step as a `KVEventBatch`."""
    return _encoder.encode(KVEventBatch(step.timestamp, _merge(step.events)))


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """A snapshot as a `KVEventBatch` that makes its content of whatever the reader had before.

    A large cache takes a good part of a second, so this is done in pieces, and after each the interpreter's
    lock is let go: the engine, in another thread, must not wait for it.
    """
    parts = [_encoder.encode(AllBlocksCleared())]
    for start in range(0, len(snapshot.blocks), PIECE):
        parts += map(_encoder.encode, _merge(snapshot.blocks[start : start + PIECE]))
        time.sleep(PAUSE_S)
    return _encoder.encode(KVEventBatch(snapshot.timestamp, list(map(msgspec.Raw, parts))))  # type: ignore[arg-type]


def _merge(events: Iterable[Event]) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
    """The events in the form they are published in."""
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
    return merged


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
