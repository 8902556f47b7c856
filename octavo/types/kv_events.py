"""KV events: what the prefix cache stores and forgets, in the form in which it is published.

A batch is the MessagePack array `[ts, events, data_parallel_rank]` and an event a map with its class name
under "type", as vLLM publishes them, so that a router which follows one engine can follow the other. Fields
that a reader does not know are for it to ignore; those of vLLM that mean nothing here yet (adapters, storage
media) are sent as nil, because its readers require them.

Every message of the stream is `[topic, sequence, batch]`, where `sequence` is 8 bytes, big-endian. A replay
is asked for with `["", sequence]` from a DEALER socket: every batch from that number on comes as
`["", sequence, batch]`, and at last `["", END, ""]`. Whoever asks from SNAPSHOT gets one batch that clears
everything and stores what is cached now, under the number of the batch of the stream that is to follow it.
"""

from __future__ import annotations

import msgspec

END = (-1).to_bytes(8, "big", signed=True)
SNAPSHOT = END  # as an unsigned number it is beyond every batch's


class KVEvent(msgspec.Struct, tag=True, kw_only=True, gc=False):
    """What happened to the prefix cache."""


class BlockStored(KVEvent):
    """Blocks of one sequence, in order, can be found from now on. The lists of blocks run in parallel."""

    block_hashes: list[bytes]  # each of a block's content and of everything before it
    parent_block_hash: bytes | None  # of the block before the first of these; None: there is none
    token_ids: list[int]  # of all the blocks, one after another
    block_size: int  # tokens a block
    group_idx: int  # KV cache group
    extra_keys: list[tuple[bytes] | None]  # what besides tokens a block's content depends on, encoded
    lora_id: int | None = None
    lora_name: str | None = None
    medium: str | None = None


class BlockRemoved(KVEvent):
    """Nothing holds the content of these blocks any longer."""

    block_hashes: list[bytes]
    group_idx: int
    medium: str | None = None


class AllBlocksCleared(KVEvent):
    """The prefix cache is empty."""


class KVEventBatch(msgspec.Struct, array_like=True, frozen=True):
    """The events of one step, in the order in which they happened."""

    ts: float  # seconds since the epoch
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int = 0  # which of the engines that serve one model together
