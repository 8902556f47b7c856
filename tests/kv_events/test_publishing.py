"""Observer, publisher and subscriber over real sockets: readers that are slow, late, restarted or absent."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
import zmq

from octavo.errors import ConfigError, EventsLostError
from octavo.kv_events.observer import KVEventsObserver
from octavo.kv_events.subscriber import CachedBlocks, KVEventsSubscriber
from octavo.types.kv_events import END, KVEventBatch
from tests.kv_events.events import (
    History,
    end_step,
    follow,
    hash_of,
    make_config,
    make_stored,
    publishing,
    subscribe,
)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> object:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


def publish_until_read(observer: KVEventsObserver, subscriber: KVEventsSubscriber) -> list[KVEventBatch]:
    """Publish until the subscription has reached the publisher; what comes first."""
    for _ in range(1000):
        observer.block_stored(make_stored(1))
        end_step(observer)
        if batches := subscriber.read(timeout_s=0.01):
            return batches
    raise AssertionError("nothing came")


def has_ipv6() -> bool:
    """Whether a socket can be bound to this machine's IPv6 address."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_the_stream_and_replays_rebuild_exactly_what_is_cached() -> None:
    with publishing() as observer:
        first = observer.next_sequence
        history = History(observer)
        with subscribe(observer, first) as subscriber:
            cached = CachedBlocks()
            for _ in range(20):
                for _ in range(20):
                    history.run_step()
                follow(subscriber, cached, observer)
                assert cached.blocks == history.blocks


@pytest.mark.parametrize("endpoint", ["ipc://{}/events", "tcp://127.0.0.1:*", "tcp://[::1]:*"])
def test_batches_come_in_order_by_the_stream_alone(endpoint: str, tmp_path: Path) -> None:
    if "::1" in endpoint and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    endpoint = endpoint.format(tmp_path)
    with publishing(endpoint, kv_events_replay_endpoint=None) as observer:
        assert observer.replay_endpoint is None
        with subscribe(observer) as subscriber:
            publish_until_read(observer, subscriber)
            for name in range(50):
                observer.block_stored(make_stored(name))
                end_step(observer)
            read: list[KVEventBatch] = []
            while subscriber.next_sequence != observer.next_sequence:
                batches = subscriber.read(timeout_s=10)
                assert batches, "the stream has stopped"
                read += batches
    hashes = [event.block_hashes for batch in read for event in batch.events]
    assert hashes[-50:] == [[hash_of(name)] for name in range(50)]


def test_a_subscriber_that_never_reads_delays_nothing() -> None:
    with publishing(kv_events_hwm=1) as observer, zmq.Context() as context:
        asleep = context.socket(zmq.SUB)
        asleep.linger, asleep.rcvhwm = 0, 1
        asleep.subscribe("")
        asleep.connect(observer.endpoint)
        never_reading = context.socket(zmq.DEALER)
        never_reading.linger, never_reading.rcvhwm = 0, 1
        never_reading.connect(str(observer.replay_endpoint))
        first, history = observer.next_sequence, History(observer)
        for step in range(3000):
            history.run_step()
            if step % 100 == 0:
                never_reading.send_multipart([b"", first.to_bytes(8, "big")], zmq.NOBLOCK)
        with subscribe(observer, first) as subscriber:
            follow(subscriber, cached := CachedBlocks(), observer)
        assert cached.blocks == history.blocks
        asleep.close()
        never_reading.close()


def test_without_any_subscriber_the_latest_steps_are_kept_for_the_first() -> None:
    with publishing(kv_events_buffer_steps=50) as observer:
        history = History(observer)
        for _ in range(500):
            history.run_step()
        start = observer.next_sequence - 50
        with subscribe(observer, start) as subscriber:
            follow(subscriber, CachedBlocks(), observer)
        with (
            subscribe(observer, start - 1) as subscriber,
            pytest.raises(EventsLostError, match=f"the engine's next is {start}"),
        ):
            follow(subscriber, CachedBlocks(), observer)


def test_a_restarted_subscriber_goes_on_where_it_was() -> None:
    with publishing() as observer:
        history, cached = History(observer), CachedBlocks()
        next_sequence: int | None = observer.next_sequence
        for _ in range(5):
            for _ in range(30):
                history.run_step()
            with subscribe(observer, next_sequence) as subscriber:
                follow(subscriber, cached, observer)
                next_sequence = subscriber.next_sequence
            assert cached.blocks == history.blocks


def test_a_gap_that_no_replay_fills_is_an_error_and_a_snapshot_starts_again_from_the_present() -> None:
    with publishing(kv_events_buffer_steps=10) as observer:
        first, history, cached = observer.next_sequence, History(observer), CachedBlocks()
        for _ in range(40):
            history.run_step()
        with subscribe(observer, first) as subscriber:
            with pytest.raises(EventsLostError, match=f"batch {first} is lost; the engine's next is"):
                follow(subscriber, cached, observer)
            cached.apply(subscriber.take_snapshot())
            assert cached.blocks == history.blocks
            history.run_step()
            follow(subscriber, cached, observer)
            assert cached.blocks == history.blocks


def test_a_snapshot_amid_a_step_comes_right_with_the_end_of_the_step() -> None:
    with publishing() as observer:
        observer.block_stored(make_stored(1))
        end_step(observer)
        observer.block_removed(hash_of(1), 0)
        observer.block_stored(make_stored(2))
        with subscribe(observer) as subscriber:
            cached = CachedBlocks()
            cached.apply(subscriber.take_snapshot())
            observer.block_removed(hash_of(2), 0)
            observer.block_stored(make_stored(1))
            end_step(observer)
            follow(subscriber, cached, observer)
            assert cached.blocks == {(hash_of(1), 0)}


def test_a_restarted_engine_is_a_gap_to_those_who_followed_the_earlier_one(tmp_path: Path) -> None:
    endpoints = f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replays"
    cached = CachedBlocks()
    with publishing(endpoints[0], kv_events_replay_endpoint=endpoints[1]) as observer:
        history = History(observer)
        history.run_step()
        subscriber = KVEventsSubscriber(*endpoints, next_sequence=observer.next_sequence)
    with subscriber, publishing(endpoints[0], kv_events_replay_endpoint=endpoints[1]) as observer:
        history = History(observer, seed=1)
        for _ in range(5):
            history.run_step()
        with pytest.raises(EventsLostError, match="it was restarted"):
            follow(subscriber, cached, observer)
        cached.apply(subscriber.take_snapshot())
        assert cached.blocks == history.blocks


def test_numbers_that_go_back_are_those_of_another_engine(tmp_path: Path) -> None:
    """A clock may have been set back before the engine was restarted."""
    config = make_config(f"ipc://{tmp_path}/events", kv_events_replay_endpoint=None)

    with KVEventsSubscriber(f"ipc://{tmp_path}/events") as subscriber:
        with closing(KVEventsObserver(config, clock=lambda: 2000.0)) as earlier:
            publish_until_read(earlier, subscriber)
        with (
            closing(KVEventsObserver(config, clock=lambda: 1000.0)) as later,
            pytest.raises(EventsLostError, match="another engine"),
        ):
            publish_until_read(later, subscriber)


def test_missed_batches_without_a_replay_endpoint_are_lost() -> None:
    with publishing(kv_events_replay_endpoint=None) as observer:
        subscriber = subscribe(observer, observer.next_sequence - 5)
        with subscriber, pytest.raises(EventsLostError, match=r"were missed.*give one"):
            publish_until_read(observer, subscriber)
        with pytest.raises(ConfigError, match="replay_endpoint is None"):
            subscriber.take_snapshot()


def test_a_snapshot_without_a_publisher_times_out(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/nobody"
    with KVEventsSubscriber(endpoint, endpoint, reply_timeout_s=0.01) as subscriber:
        with pytest.raises(TimeoutError, match="no snapshot came from ipc://"):
            subscriber.take_snapshot()
        assert subscriber.read(timeout_s=0) == []


def test_an_emptied_cache_is_told_at_once() -> None:
    """It happens between steps."""
    with publishing() as observer:
        first = observer.next_sequence
        observer.all_blocks_cleared()
        assert observer.next_sequence == first + 1
        end_step(observer)
        assert observer.next_sequence == first + 1, "a step without events has no batch"


def test_requests_that_are_none_are_passed_over() -> None:
    with publishing() as observer, zmq.Context() as context, context.socket(zmq.DEALER) as asker:
        asker.linger = 0
        asker.connect(str(observer.replay_endpoint))
        for request in ([b""], [b"", b"short"], [b"x", bytes(8)], [b"", bytes(8), b""], [b"", bytes(8)]):
            asker.send_multipart(request)
        assert asker.recv_multipart() == [b"", END, b""]


@pytest.mark.parametrize("setting", ["kv_events_endpoint", "kv_events_replay_endpoint"])
@pytest.mark.parametrize("endpoint", ["", "5557", "udp://127.0.0.1:5", "ipc:///no/where", "tcp://no/where:5"])
def test_an_endpoint_that_cannot_be_bound_is_refused_by_its_name(setting: str, endpoint: str) -> None:
    with pytest.raises(ConfigError, match=rf"\A{setting} is {endpoint!r}, which cannot be bound: \w+"):
        KVEventsObserver(make_config(**{setting: endpoint}))


WORDS = [
    "65536",
    "70000",
    "-1",
    "+70000",
    "70000abc",
    "5_557",
    "1_0",
    "80.5e1",
    "0x50",
    "٨٠",
    "²",
    "inf",
    "http",
]
PORTS_THAT_ARE_NONE = pytest.mark.parametrize("port", [*WORDS, "", " 70000", "80 ", "9" * 30, "1" * 5000])


@pytest.mark.parametrize("setting", ["kv_events_endpoint", "kv_events_replay_endpoint"])
@PORTS_THAT_ARE_NONE
def test_a_port_that_there_is_not_is_refused_by_its_name(setting: str, port: str) -> None:
    """ZeroMQ would take it modulo 65536."""
    refused = rf"\A{setting} is 'tcp://127.0.0.1:.*; a TCP port is a number from 0 to 65535"
    with pytest.raises(ConfigError, match=refused):
        KVEventsObserver(make_config(**{setting: f"tcp://127.0.0.1:{port}"}))


@PORTS_THAT_ARE_NONE
def test_an_invalid_port_is_refused(port: str) -> None:
    with pytest.raises(ConfigError, match=r"\Aendpoint is 'tcp://\[::1\]:.*; a TCP port is"):
        KVEventsSubscriber(f"tcp://[::1]:{port}")
    with pytest.raises(ConfigError, match=r"\Areplay_endpoint is 'tcp://.*; a TCP port is"):
        KVEventsSubscriber("tcp://127.0.0.1:5557", f"tcp://127.0.0.1:{port}")


@pytest.mark.parametrize("endpoint", ["tcp://", "tcp://127.0.0.1", "tcp://[::1]"])
def test_an_address_without_a_port_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"kv_events_endpoint is 'tcp://.*; a TCP port is a number"):
        KVEventsObserver(make_config(kv_events_endpoint=endpoint))


@pytest.mark.parametrize("port", ["*", "0"])
def test_any_free_port_will_do(port: str) -> None:
    with publishing(f"tcp://127.0.0.1:{port}") as observer:
        assert int(observer.endpoint.rpartition(":")[2]) > 0


def test_an_endpoint_that_is_no_port_may_end_with_any_number(tmp_path: Path) -> None:
    with publishing(f"ipc://{tmp_path}/events:70000") as observer:
        assert observer.endpoint.endswith(":70000")


def test_an_endpoint_in_use_is_refused() -> None:
    with publishing() as observer, pytest.raises(ConfigError, match="in use"):
        KVEventsObserver(make_config(observer.endpoint))


def test_closing_publishes_what_is_left_and_may_be_repeated(tmp_path: Path) -> None:
    with publishing(f"ipc://{tmp_path}/events") as observer:
        with subscribe(observer) as subscriber:
            publish_until_read(observer, subscriber)
            observer.block_removed(hash_of(1), 0)
            end_step(observer)
            observer.block_removed(hash_of(0), 0)  # after the last step
            next_sequence = observer.next_sequence
            observer.close()
            observer.close()
            assert observer.next_sequence == next_sequence + 1
            while subscriber.next_sequence != observer.next_sequence:
                assert subscriber.read(timeout_s=10), "the last batch never came"
        observer.block_stored(make_stored(1))
        end_step(observer)  # nobody hears of it, and nothing fails


def test_an_observer_that_is_forgotten_ends_its_thread() -> None:
    """See the fixture."""
    observer = KVEventsObserver(make_config())
    assert any(thread.name == "octavo-kv-events" for thread in threading.enumerate())
    del observer
    gc.collect()


def test_the_interpreter_ends_with_events_unread() -> None:
    program = """
import zmq
from tests.kv_events.events import History, make_config
from octavo.kv_events.observer import KVEventsObserver
observer = KVEventsObserver(make_config())
asleep = zmq.Context.instance().socket(zmq.SUB)
asleep.linger = 0
asleep.subscribe("")
asleep.connect(observer.endpoint)
history = History(observer)
for _ in range(1000):
    history.run_step()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
