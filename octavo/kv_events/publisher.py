"""`Publisher`: a thread that sends the journal's steps to all subscribers (PUB), and replays them (ROUTER).

`octavo.types.kv_events` describes the messages. The thread never waits for a reader: a message that does not
fit into the reader's queue is dropped, and the reader finds the gap in the sequence numbers.
"""

from __future__ import annotations

import socket
import threading

import zmq

from octavo.config import ObservationConfig
from octavo.errors import ConfigError
from octavo.kv_events.encoding import encode_snapshot, encode_step
from octavo.kv_events.endpoints import check_port
from octavo.kv_events.journal import Journal
from octavo.logs import get_logger
from octavo.types.kv_events import END, SNAPSHOT

logger = get_logger(__name__)

LINGER_MS = 250  # time for the last batches to reach their readers when the engine ends

# Messages that wait for a subscriber that asks for replays and does not read them, besides one whole replay.
# Further ones are dropped.
REPLAY_RESERVE = 1000


class Publisher:
    """Publishes `journal`. Raises ConfigError for an endpoint that cannot be bound."""

    def __init__(self, config: ObservationConfig, journal: Journal) -> None:
        self._journal = journal
        self._next_sequence = journal.next_sequence
        self._topic = config.kv_events_topic.encode()
        self._context = zmq.Context()
        self._stream = self._context.socket(zmq.PUB)
        self._stream.sndhwm = config.kv_events_hwm
        self._replays = self._context.socket(zmq.ROUTER)
        self._replays.sndhwm = config.kv_events_buffer_steps + REPLAY_RESERVE
        try:
            self.endpoint = _bind(self._stream, "kv_events_endpoint", config.kv_events_endpoint)
            self.replay_endpoint = (
                _bind(self._replays, "kv_events_replay_endpoint", config.kv_events_replay_endpoint)
                if config.kv_events_replay_endpoint is not None
                else None
            )
        except ConfigError:
            self._context.destroy(linger=0)
            raise
        logger.info("publishing KV events at %s, replays at %s", self.endpoint, self.replay_endpoint)
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._closing = False
        # A daemon, so that the interpreter's exit does not wait for it before `close` is called.
        self._thread = threading.Thread(target=self._run, name="octavo-kv-events", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Make the thread read the journal. Never waits."""
        try:
            self._wake_sender.send(b"\0")
        except OSError:
            return  # full: the thread will read the journal anyway; or closed: the thread has ended

    def close(self) -> None:
        """Publish the journal's last steps and end the thread."""
        self._closing = True
        self.wake()
        # The garbage collector may call this in any thread.
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._wake_sender.close()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake_receiver, zmq.POLLIN)
        poller.register(self._replays, zmq.POLLIN)
        closing = False
        try:
            while not closing:
                ready = dict(poller.poll())
                if self._wake_receiver.fileno() in ready:
                    self._wake_receiver.recv(4096)
                closing = self._closing  # read first, so that the journal is read once more after `close`
                self._publish()
                if self._replays in ready:
                    self._answer(self._replays.recv_multipart())
        finally:
            self._wake_receiver.close()
            self._context.destroy(linger=LINGER_MS)

    def _publish(self) -> None:
        for step in self._journal.read(self._next_sequence):
            self._stream.send_multipart([self._topic, _encode_sequence(step.sequence), encode_step(step)])
            self._next_sequence = step.sequence + 1

    def _answer(self, request: list[bytes]) -> None:
        """Answer a request for a replay or a snapshot. A malformed request is ignored, with a warning."""
        match request:
            case [asker, b"", sequence] if sequence == SNAPSHOT:
                snapshot = self._journal.take_snapshot()
                self._reply(asker, _encode_sequence(snapshot.next_sequence), encode_snapshot(snapshot))
                self._reply(asker, END, b"")
            case [asker, b"", sequence] if len(sequence) == len(END):
                for step in self._journal.read(int.from_bytes(sequence, "big")):
                    self._reply(asker, _encode_sequence(step.sequence), encode_step(step))
                self._reply(asker, END, b"")
            case _:
                logger.warning("a request for a replay is not a sequence number of 8 bytes; it is ignored")

    def _reply(self, asker: bytes, sequence: bytes, payload: bytes) -> None:
        self._replays.send_multipart([asker, b"", sequence, payload])


def _bind(socket: zmq.Socket[bytes], setting: str, endpoint: str | None) -> str:
    """Bind, and return the address. Raises ConfigError, naming the setting."""
    assert endpoint is not None, f"{setting} must be set if events are published"
    check_port(setting, endpoint)
    try:
        socket.ipv6 = endpoint.startswith("tcp://[")
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(
            f"{setting} is {endpoint!r}, which cannot be bound: {error.strerror}; give a free address "
            "such as tcp://127.0.0.1:5557, tcp://*:5557 or ipc:///tmp/octavo-events"
        ) from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def _encode_sequence(sequence: int) -> bytes:
    return sequence.to_bytes(8, "big")
