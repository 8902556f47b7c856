"""KV events: the changes of the prefix cache, in the form in which they are published.

The form is that of vLLM 0.32, so a router that reads the events of one engine can read those of the other. A
batch is the MessagePack array `[ts, events, data_parallel_rank]`. An event is a map that has its class name
under "type". A reader ignores fields that it does not know. Fields of vLLM that have no meaning here yet
(adapters, storage media) are sent as nil, because vLLM's readers require them.

Each message of the stream is `[topic, sequence, batch]`, where `sequence` is 8 bytes, big-endian. A reader
asks for a replay with `["", sequence]` from a DEALER socket. It gets every batch from that number on as
`["", sequence, batch]`, and then `["", END, ""]`. If it sends SNAPSHOT instead of a number, it gets one batch
whose events clear the prefix cache and store all blocks that are cached now. The number of this batch is that
of the next batch of the stream.

A block counts as stored when requests can hit it: as soon as the step that fills it is planned. The event is
sent with the results of a step. If the step that fills the block fails, the same batch or a later one removes
the block.
"""

from __future__ import annotations

import msgspec

END = (-1).to_bytes(8, "big", signed=True)
SNAPSHOT = END  # as an unsigned number it is greater than the number of any batch


class KVEvent(msgspec.Struct, tag=True, kw_only=True, gc=False):
    """A change of the prefix cache."""


class BlockStored(KVEvent):
    """Consecutive blocks of one sequence can be hit from now on. The lists have one entry for each block."""

    block_hashes: list[bytes]  # hash of the content of each block and all before it
    # Hash of the block before the first of these. None = the first of these begins its sequence.
    parent_block_hash: bytes | None
    token_ids: list[int]  # tokens of all these blocks, concatenated
    block_size: int  # tokens in a block
    group_idx: int  # KV cache group
    extra_keys: list[tuple[bytes] | None]  # inputs other than tokens that each block depends on, encoded
    lora_id: int | None = None
    lora_name: str | None = None
    medium: str | None = None


class BlockRemoved(KVEvent):
    """No block of the group holds the content with these hashes any more."""

    block_hashes: list[bytes]
    group_idx: int
    medium: str | None = None


class AllBlocksCleared(KVEvent):
    """The prefix cache is empty."""


class KVEventBatch(msgspec.Struct, array_like=True, frozen=True):
    """The events of one step, in the order in which they happened."""

    ts: float  # seconds since the epoch
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int = 0  # the number of this engine among those that serve one model together
