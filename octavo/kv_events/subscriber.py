"""The other end of the stream: every batch in order and once, or an error that says what is lost.

For programs that route requests to where their prefixes are cached. Needs nothing of the engine.

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
    """Follows one engine's stream. Not for several threads at once.

    `next_sequence` is the number of the batch that is due next. Who keeps it (and what the batches so far
    came to) can go on from there after a restart; with None the stream is entered wherever it is.
    """

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str | None = None,
        topic: str = "",
        next_sequence: int | None = None,
        reply_timeout_s: float = REPLY_TIMEOUT_S,
    ) -> None:
        """Raises ConfigError for a port that there is not."""
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
        """The next batches. Waits for at most about `timeout_s`; then asks for what may have been missed.

        An empty list: there are none, or the engine does not answer. Raises EventsLostError where some are
        lost for good; `take_snapshot` then starts again from the present.
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
                f"batches {self.next_sequence} to {sequence - 1} were missed; they could be asked for at a "
                "replay_endpoint, but none was given"
            )
        return self._catch_up()

    def take_snapshot(self) -> KVEventBatch:
        """Start from the present: a batch that clears everything and stores what is cached now.

        Raises TimeoutError when the engine does not answer.
        """
        replies = list(self._ask(SNAPSHOT))
        if not replies:
            raise TimeoutError(f"no snapshot came from {self._replay_endpoint} in {self._reply_timeout_s} s")
        ((sequence, payload),) = replies
        self.next_sequence = sequence
        self._last_streamed = -1
        return _decoder.decode(payload)

    def close(self) -> None:
        """Leave the stream. May be called again."""
        self._context.destroy(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _catch_up(self) -> list[KVEventBatch]:
        """Everything from `next_sequence` on that the engine still has."""
        if self.next_sequence is None:
            return []  # no place in the stream yet, so nothing can have been missed
        batches = []
        for sequence, payload in self._ask(self.next_sequence.to_bytes(8, "big")):
            if sequence != self.next_sequence:
                raise EventsLostError(
                    f"batch {self.next_sequence} is due and the engine has none before {sequence}: it keeps "
                    "kv_events_buffer_steps of them, or was started anew; start again from a snapshot"
                )
            batches.append(_decoder.decode(payload))
            self.next_sequence += 1
        return batches

    def _ask(self, start: bytes) -> Iterator[tuple[int, bytes]]:
        """The replies, number and payload, to one request; they end early where the engine falls silent."""
        if self._replay_endpoint is None:
            raise ConfigError("replay_endpoint is None; give the engine's kv_events_replay_endpoint")
        # A socket of its own, so that an answer that comes too late is not taken for the next one's.
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
    socket.ipv6 = endpoint.startswith("tcp://[")  # a name is then looked up as before
    socket.connect(endpoint)


class CachedBlocks:
    """What an engine's prefix cache holds, as far as the batches go that have been applied."""

    def __init__(self) -> None:
        self.blocks: set[tuple[bytes, int]] = set()  # hash and KV cache group

    def apply(self, batch: KVEventBatch) -> None:
        """Take in a batch: the next one, or a snapshot."""
        for event in batch.events:
            match event:
                case BlockStored():
                    self.blocks.update((block_hash, event.group_idx) for block_hash in event.block_hashes)
                case BlockRemoved():
                    self.blocks.difference_update((each, event.group_idx) for each in event.block_hashes)
                case AllBlocksCleared():
                    self.blocks.clear()
