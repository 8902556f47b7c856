"""The two queues, as the loop that schedules relies on them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from octavo.config import SchedulerConfig
from octavo.scheduler.policy import PriorityPolicy
from octavo.scheduler.request import Request
from octavo.scheduler.request_queue import (
    FCFSRequestQueue,
    PriorityRequestQueue,
    RequestQueue,
    SchedulingPolicy,
    create_request_queue,
)
from tests.fakes import make_request

QUEUES = [FCFSRequestQueue, PriorityRequestQueue]


def a_request(name: str, priority: int = 0, arrival_time: float = 0.0) -> Request:
    core_request = make_request(name, [1], priority=priority, arrival_time=arrival_time)
    request = Request(core_request, max_model_len=100)
    PriorityPolicy(aging_s=0).rank(request)
    return request


def names(queue: RequestQueue) -> list[str]:
    return [request.request_id for request in queue]


def drain(queue: RequestQueue) -> list[str]:
    return [queue.pop_request().request_id for _ in range(len(queue))]


def filled(kind: type[RequestQueue], requests: list[Request]) -> RequestQueue:
    queue = kind()
    for request in requests:
        queue.add_request(request)
    return queue


@pytest.mark.parametrize(
    ("policy", "kind"),
    [(SchedulingPolicy.FCFS, FCFSRequestQueue), (SchedulingPolicy.PRIORITY, PriorityRequestQueue)],
)
def test_a_policy_has_its_queue(policy: SchedulingPolicy, kind: type[RequestQueue]) -> None:
    queue = create_request_queue(policy)
    assert type(queue) is kind
    assert not queue


@pytest.mark.parametrize("policy", ["fcfs", "lottery", None])
def test_an_unknown_policy_is_a_value_error_that_names_the_policies(policy: object) -> None:
    with pytest.raises(ValueError, match="fcfs, priority"):
        create_request_queue(policy)


def test_there_is_a_queue_for_every_policy_that_can_be_configured() -> None:
    assert {policy.value for policy in SchedulingPolicy} == {"fcfs", "priority", "fair"}
    assert SchedulingPolicy(SchedulerConfig().scheduling_policy) is SchedulingPolicy.FCFS


@pytest.mark.parametrize("kind", QUEUES)
@pytest.mark.parametrize("method", ["pop_request", "peek_request"])
def test_an_empty_queue_has_nothing_to_peek_or_pop(kind: type[RequestQueue], method: str) -> None:
    queue = kind()
    take: Callable[[], Request] = getattr(queue, method)
    with pytest.raises(IndexError, match="empty"):
        take()


@pytest.mark.parametrize("kind", QUEUES)
def test_peeking_leaves_the_request_in_place(kind: type[RequestQueue]) -> None:
    queue = filled(kind, [a_request("a"), a_request("b")])
    assert queue.peek_request() is queue.peek_request()
    assert len(queue) == 2
    assert queue.peek_request() is queue.pop_request()
    assert len(queue) == 1


@pytest.mark.parametrize("kind", QUEUES)
def test_a_queue_is_true_while_it_is_not_empty(kind: type[RequestQueue]) -> None:
    queue = filled(kind, [a_request("a")])
    assert queue
    queue.pop_request()
    assert not queue
    assert len(queue) == 0


@pytest.mark.parametrize("kind", QUEUES)
def test_iterating_shows_the_order_of_popping_and_changes_nothing(kind: type[RequestQueue]) -> None:
    requests = [a_request(str(number), priority=number * 7 % 5) for number in range(9)]
    queue = filled(kind, requests)
    shown = names(queue)
    assert shown == names(queue)
    assert drain(queue) == shown


@pytest.mark.parametrize("kind", QUEUES)
def test_removing_a_request_that_is_not_queued_is_a_value_error(kind: type[RequestQueue]) -> None:
    queue = filled(kind, [a_request("a")])
    with pytest.raises(ValueError, match="not in"):
        queue.remove_request(a_request("a"))
    assert names(queue) == ["a"]


@pytest.mark.parametrize("kind", QUEUES)
def test_removing_several_takes_any_iterable_and_ignores_requests_that_are_not_queued(
    kind: type[RequestQueue],
) -> None:
    requests = [a_request(name) for name in "abcdef"]
    queue = filled(kind, requests)
    queue.remove_requests([requests[1], requests[1], a_request("stranger")])
    queue.remove_requests({requests[3]})
    queue.remove_requests(iter(requests[5:]))
    queue.remove_requests([])
    assert drain(queue) == ["a", "c", "e"]


# ------------------------------------------------------------------------------------------------------- fcfs


def test_first_come_first_served_whatever_the_priority_or_the_time() -> None:
    queue = filled(FCFSRequestQueue, [a_request("a", 5, 3.0), a_request("b", 1, 2.0), a_request("c", 9, 1.0)])
    assert drain(queue) == ["a", "b", "c"]


def test_a_prepended_request_is_next() -> None:
    queue = filled(FCFSRequestQueue, [a_request("a"), a_request("b")])
    queue.prepend_request(a_request("z"))
    assert names(queue) == ["z", "a", "b"]


def test_prepending_several_reverses_them() -> None:
    queue = filled(FCFSRequestQueue, [a_request("a")])
    queue.prepend_requests(a_request(name) for name in "xyz")
    assert names(queue) == ["z", "y", "x", "a"]


def test_prepending_what_was_collected_by_prepending_restores_the_order() -> None:
    collected = FCFSRequestQueue()
    for name in "xyz":
        collected.prepend_request(a_request(name))
    queue = filled(FCFSRequestQueue, [a_request("a")])
    queue.prepend_requests(collected)
    assert names(queue) == ["x", "y", "z", "a"]


def test_removing_one_keeps_the_order_of_the_others() -> None:
    requests = [a_request(name) for name in "abc"]
    queue = filled(FCFSRequestQueue, requests)
    queue.remove_request(requests[1])
    assert names(queue) == ["a", "c"]


# --------------------------------------------------------------------------------------------------- priority


def test_the_lower_number_the_earlier_arrival_the_smaller_id_goes_first() -> None:
    expected = [
        a_request("z", -1, 9.0),
        a_request("y", 0, 1.0),
        a_request("a", 0, 2.0),
        a_request("b", 0, 2.0),
        a_request("x", 1, 0.0),
    ]
    for seed in range(20):
        shuffled = random.Random(seed).sample(expected, len(expected))
        assert drain(filled(PriorityRequestQueue, shuffled)) == ["z", "y", "a", "b", "x"]


def test_a_priority_queue_has_no_front_to_prepend_to() -> None:
    queue = filled(PriorityRequestQueue, [a_request("m", 5)])
    queue.prepend_request(a_request("late", 9))
    queue.prepend_requests([a_request("urgent", 0), a_request("later", 10)])
    assert drain(queue) == ["urgent", "m", "late", "later"]


@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_removal_leaves_a_heap(several: bool) -> None:
    for seed in range(30):
        rng = random.Random(seed)
        requests = [a_request(f"{number:02}", rng.randrange(6)) for number in range(20)]
        queue = filled(PriorityRequestQueue, requests)
        gone = rng.sample(requests, 7)
        if several:
            queue.remove_requests(gone)
        else:
            for request in gone:
                queue.remove_request(request)
        left = sorted(set(requests) - set(gone))
        assert drain(queue) == [request.request_id for request in left]
