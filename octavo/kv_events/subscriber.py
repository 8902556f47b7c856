"""`KVEventsSubscriber`: receives every batch once and in order, or raises an error that says what is lost.

It is for programs that route requests to engines that have their prefixes cached. It needs no engine itself.

    with KVEventsSubscriber("tcp://host:5557", "tcp://host:5558") as subscriber:
        cached = CachedBlocks()
        cached.apply(subscriber.take_snapshot())
        while True:
            try:
                batches = subscriber.read(timeout_s=1.0)
            except EventsLostError:
                batches = [subscriber.take_snapshot()]
            for batch in batches:
                cached.apply(batch)
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

import msgspec
import zmq

from octavo.errors import ConfigError, EventsLostError
from octavo.kv_events.endpoints import check_port
from octavo.types.kv_events import (
    END,
    SNAPSHOT,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
)

REPLY_TIMEOUT_S = 5.0

_decoder = msgspec.msgpack.Decoder(KVEventBatch)


class KVEventsSubscriber:
    """Follows one engine's stream. Only one thread may use it at a time.

    `next_sequence` is the number of the next batch. A program that stores it, together with its state, can
    continue from there after a restart. With None the subscriber begins with the first batch that comes.
    """

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str | None = None,
        topic: str = "",
        next_sequence: int | None = None,
        reply_timeout_s: float = REPLY_TIMEOUT_S,
    ) -> None:
        """Connect to the stream. Raises ConfigError for an invalid TCP port."""
        check_port("endpoint", endpoint)
        if replay_endpoint is not None:
            check_port("replay_endpoint", replay_endpoint)
        self.next_sequence = next_sequence
        self._replay_endpoint = replay_endpoint
        self._reply_timeout_s = reply_timeout_s
        self._last_streamed = -1
        self._context = zmq.Context()
        self._stream = self._context.socket(zmq.SUB)
        self._stream.subscribe(topic)
        _connect(self._stream, endpoint)

    def read(self, timeout_s: float) -> list[KVEventBatch]:
        """The next batches. Waits about `timeout_s` at most, and then asks for batches that were missed.

        The list is empty if there are no batches, or if the engine does not answer. Raises EventsLostError if
        batches are lost for ever; `take_snapshot` then starts again from the present.
        """
        if not self._stream.poll(int(timeout_s * 1000)):
            return [] if self._replay_endpoint is None else self._catch_up()
        _, encoded, payload = self._stream.recv_multipart()
        sequence = int.from_bytes(encoded, "big")
        if sequence <= self._last_streamed:
            raise EventsLostError(
                f"batch {sequence} came after {self._last_streamed}, so another engine is at this endpoint "
                "now; start again from a snapshot"
            )
        self._last_streamed = sequence
        if self.next_sequence is None or sequence == self.next_sequence:
            self.next_sequence = sequence + 1
            return [_decoder.decode(payload)]
        if sequence < self.next_sequence:
            return []  # a replay or a snapshot was faster
        if self._replay_endpoint is None:
            raise EventsLostError(
                f"batches {self.next_sequence} to {sequence - 1} were missed, and they can be replayed only "
                "from a replay_endpoint; give one"
            )
        return self._catch_up()

    def take_snapshot(self) -> KVEventBatch:
        """Start from the present. Returns a batch that clears everything and then stores what is cached now.

        Raises TimeoutError if the engine does not answer.
        """
        replies = list(self._ask(SNAPSHOT))
        if not replies:
            raise TimeoutError(f"no snapshot came from {self._replay_endpoint} in {self._reply_timeout_s} s")
        ((sequence, payload),) = replies
        self.next_sequence = sequence
        self._last_streamed = -1
        return _decoder.decode(payload)

    def close(self) -> None:
        """Disconnect from the stream. May be called again."""
        self._context.destroy(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _catch_up(self) -> list[KVEventBatch]:
        """All batches from `next_sequence` on. Raises EventsLostError if the engine lacks one of them."""
        if self.next_sequence is None:
            return []  # nothing was received yet, so nothing was missed
        batches = []
        for sequence, payload in self._ask(self.next_sequence.to_bytes(8, "big")):
            if sequence != self.next_sequence:
                raise EventsLostError(
                    f"batch {self.next_sequence} is lost; the engine's next is {sequence}, because it keeps "
                    "only kv_events_buffer_steps, or because it was restarted; start again from a snapshot"
                )
            batches.append(_decoder.decode(payload))
            self.next_sequence += 1
        return batches

    def _ask(self, start: bytes) -> Iterator[tuple[int, bytes]]:
        """The replies (number, payload) to one request. They end early if the engine stops answering."""
        if self._replay_endpoint is None:
            raise ConfigError("replay_endpoint is None; give the engine's kv_events_replay_endpoint")
        # A new socket for each request, so that a late reply is not taken for a reply to the next request.
        with self._context.socket(zmq.DEALER) as replays:
            replays.linger = 0
            replays.rcvhwm = 0
            _connect(replays, self._replay_endpoint)
            replays.send_multipart([b"", start])
            while replays.poll(int(self._reply_timeout_s * 1000)):
                _, sequence, payload = replays.recv_multipart()
                if sequence == END:
                    return
                yield int.from_bytes(sequence, "big"), payload


def _connect(socket: zmq.Socket[bytes], endpoint: str) -> None:
    socket.ipv6 = endpoint.startswith("tcp://[")  # only for IPv6 addresses, so that names resolve to IPv4
    socket.connect(endpoint)


class CachedBlocks:
    """The blocks in an engine's prefix cache, according to the batches applied so far."""

    def __init__(self) -> None:
        self.blocks: set[tuple[bytes, int]] = set()  # hash and KV cache group

    def apply(self, batch: KVEventBatch) -> None:
        """Apply a batch: the next one, or a snapshot."""
        for event in batch.events:
            match event:
                case BlockStored():
                    self.blocks.update((block_hash, event.group_idx) for block_hash in event.block_hashes)
                case BlockRemoved():
                    self.blocks.difference_update((each, event.group_idx) for each in event.block_hashes)
                case AllBlocksCleared():
                    self.blocks.clear()
