"""The bytes on the wire, as a reader that was written for vLLM takes them."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.kv_events.encoding import encode_snapshot, encode_step
from octavo.kv_events.journal import Event, RemovedBlock, Snapshot, Step
from octavo.types.kv_events import AllBlocksCleared, KVEventBatch
from tests.kv_events.events import hash_of, make_stored


def encode(*events: Event) -> list[dict[str, Any]]:
    """The events as plain data."""
    timestamp, encoded, rank = msgspec.msgpack.decode(encode_step(Step(7, 12.5, list(events))))
    assert (timestamp, rank) == (12.5, 0)
    return encoded


def test_a_stored_block_has_every_field_that_readers_of_vllm_require() -> None:
    assert encode(make_stored(2, parent=1, group_id=3, extra_keys=b"salt")) == [
        {
            "type": "BlockStored",
            "block_hashes": [hash_of(2)],
            "parent_block_hash": hash_of(1),
            "token_ids": [8, 9, 10, 11],
            "block_size": 4,
            "group_idx": 3,
            "extra_keys": [[b"salt"]],
            "lora_id": None,
            "lora_name": None,
            "medium": None,
        }
    ]


def test_the_other_events() -> None:
    removed = {"type": "BlockRemoved", "block_hashes": [hash_of(2)], "group_idx": 1, "medium": None}
    assert encode(RemovedBlock(hash_of(2), 1), AllBlocksCleared()) == [removed, {"type": "AllBlocksCleared"}]


def test_a_run_of_one_sequence_is_one_event() -> None:
    (run,) = encode(make_stored(0), make_stored(1, 0, extra_keys=b"x"), make_stored(2, 1))
    assert run["block_hashes"] == [hash_of(0), hash_of(1), hash_of(2)]
    assert run["parent_block_hash"] is None
    assert run["token_ids"] == list(range(12))
    assert run["extra_keys"] == [None, [b"x"], None]


def test_runs_end_where_the_sequence_or_the_group_changes() -> None:
    events = encode(
        make_stored(0),
        make_stored(5),
        make_stored(6, 5),
        make_stored(6, 5, group_id=1),
        RemovedBlock(hash_of(5), 0),
        RemovedBlock(hash_of(6), 0),
        RemovedBlock(hash_of(6), 1),
        make_stored(7, 6),
    )
    assert [(event["type"], event["group_idx"], len(event["block_hashes"])) for event in events] == [
        ("BlockStored", 0, 1),
        ("BlockStored", 0, 2),
        ("BlockStored", 1, 1),
        ("BlockRemoved", 0, 2),
        ("BlockRemoved", 1, 1),
        ("BlockStored", 0, 1),
    ]


def test_a_snapshot_begins_by_clearing() -> None:
    batch = msgspec.msgpack.decode(
        encode_snapshot(Snapshot(9, 1.0, [make_stored(0), make_stored(1, 0)])), type=KVEventBatch
    )
    assert [type(event).__name__ for event in batch.events] == ["AllBlocksCleared", "BlockStored"]


def test_to_encode_a_step_twice_gives_the_same() -> None:
    step = Step(7, 12.5, [make_stored(0), make_stored(1, 0), RemovedBlock(hash_of(0), 0)])
    assert encode_step(step) == encode_step(step)
