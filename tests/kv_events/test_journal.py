"""What the journal keeps, and what a reader sees who is too slow for it."""

from __future__ import annotations

from octavo.kv_events.journal import Journal, RemovedBlock
from tests.kv_events.events import hash_of, make_stored


def make_journal(capacity: int, num_steps: int) -> Journal:
    journal = Journal(capacity, clock=lambda: 0.0001)  # sequence numbers begin at 100
    for name in range(num_steps):
        journal.append([RemovedBlock(hash_of(name), 0)])
    return journal


def test_new_steps_overwrite_the_oldest() -> None:
    journal = make_journal(capacity=3, num_steps=5)
    assert [step.sequence for step in journal.read(0)] == [102, 103, 104]
    assert [step.events for step in journal.read(104)] == [[RemovedBlock(hash_of(4), 0)]]
    assert list(journal.read(105)) == []
    assert journal.next_sequence == 105


def test_before_it_is_full_it_holds_everything() -> None:
    assert [step.sequence for step in make_journal(capacity=3, num_steps=2).read(0)] == [100, 101]
    assert list(make_journal(capacity=3, num_steps=0).read(0)) == []


def test_a_reader_who_is_overtaken_goes_on_with_the_oldest_that_is_left() -> None:
    journal = make_journal(capacity=3, num_steps=3)
    reading = journal.read(0)
    assert next(reading).sequence == 100
    for _ in range(4):
        journal.append([])
    assert [step.sequence for step in reading] == [104, 105, 106]


def test_numbers_begin_where_no_earlier_journal_came_to() -> None:
    first = Journal(10, clock=lambda: 1000.0)
    for _ in range(500):
        first.append([])
    assert Journal(10, clock=lambda: 1000.001).next_sequence > first.next_sequence


def test_a_snapshot_names_the_step_to_go_on_from() -> None:
    journal = make_journal(capacity=3, num_steps=5)
    stored = make_stored(1)
    journal.cached[stored.block_hash, 0] = stored
    snapshot = journal.take_snapshot()
    assert (snapshot.next_sequence, snapshot.blocks) == (105, [stored])
    journal.cached.clear()
    assert snapshot.blocks == [stored]
