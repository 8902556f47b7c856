"""Encodes a step's events for publication. Consecutive blocks of one sequence become one event."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable

import msgspec

from octavo.kv_events.journal import Event, RemovedBlock, Snapshot, Step
from octavo.types.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from octavo.types.observer import StoredBlock

# Blocks of a snapshot that are encoded without a pause (about 2 ms), and the pause after them.
PIECE = 400
PAUSE_S = 0.0005

_encoder = msgspec.msgpack.Encoder()


def encode_step(step: Step) -> bytes:
    """A step as a `KVEventBatch`."""
    return _encoder.encode(KVEventBatch(step.timestamp, _merge(step.events)))


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """A snapshot as a `KVEventBatch` that clears the reader's state and then stores all blocks.

    A large cache takes a good part of a second. So the encoder pauses after every PIECE blocks, and releases
    the interpreter's lock for the engine, which runs in another thread.
    """
    parts = [_encoder.encode(AllBlocksCleared())]
    for start in range(0, len(snapshot.blocks), PIECE):
        parts += map(_encoder.encode, _merge(snapshot.blocks[start : start + PIECE]))
        time.sleep(PAUSE_S)
    return _encoder.encode(KVEventBatch(snapshot.timestamp, list(map(msgspec.Raw, parts))))  # type: ignore[arg-type]


def _merge(events: Iterable[Event]) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
    """The events in their published form."""
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
    """A run without blocks, to which `stored` will be added first."""
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
