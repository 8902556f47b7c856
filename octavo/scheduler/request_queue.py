"""Queues in which requests wait until they get a row and KV cache blocks.

The scheduling loop only peeks and pops. A queue is either first in, first out, or sorted by the orders that
the policy gave its requests; a new policy (`policy.py`) needs no new queue.
"""

from __future__ import annotations

import enum
import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator

from octavo.scheduler.request import Request


class SchedulingPolicy(enum.Enum):
    """The names of the policies in `policy.py`."""

    FCFS = "fcfs"
    PRIORITY = "priority"
    FAIR = "fair"


class RequestQueue(ABC):
    """A queue of waiting requests."""

    @abstractmethod
    def add_request(self, request: Request) -> None:
        """Add `request` at its position in the queue's order."""

    @abstractmethod
    def pop_request(self) -> Request:
        """Remove and return the next request. Raises IndexError when empty."""

    @abstractmethod
    def peek_request(self) -> Request:
        """The next request, which stays in the queue. Raises IndexError when empty."""

    @abstractmethod
    def prepend_request(self, request: Request) -> None:
        """Put `request` back at the front. A sorted queue puts it at its position."""

    @abstractmethod
    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Call `prepend_request` for each in turn. An FCFS queue then has them in front in reverse order."""

    @abstractmethod
    def remove_request(self, request: Request) -> None:
        """Remove `request`. O(n). Raises ValueError when it is not in the queue."""

    @abstractmethod
    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Remove all of `requests` that are in the queue. O(n)."""

    @abstractmethod
    def __bool__(self) -> bool: ...

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Request]:
        """The requests in the order in which they would be popped. The queue stays as it is."""


class FCFSRequestQueue(deque[Request], RequestQueue):
    """First come, first served: a deque with the names of `RequestQueue`."""

    def add_request(self, request: Request) -> None:
        self.append(request)

    def pop_request(self) -> Request:
        return self.popleft()

    def peek_request(self) -> Request:
        if not self:
            raise IndexError("peek from an empty queue")
        return self[0]

    def prepend_request(self, request: Request) -> None:
        self.appendleft(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        self.extendleft(requests)

    def remove_request(self, request: Request) -> None:
        self.remove(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        # A deque cannot drop several entries from its middle in place.
        gone = set(requests)
        kept = [request for request in self if request not in gone]
        self.clear()
        self.extend(kept)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __len__(self) -> int:
        return super().__len__()

    def __iter__(self) -> Iterator[Request]:
        return super().__iter__()


class PriorityRequestQueue(RequestQueue):
    """The smallest `Request.order` first: a heap. It has no front to prepend to."""

    def __init__(self) -> None:
        self._heap: list[Request] = []

    def add_request(self, request: Request) -> None:
        heapq.heappush(self._heap, request)

    def pop_request(self) -> Request:
        if not self._heap:
            raise IndexError("pop from an empty heap")
        return heapq.heappop(self._heap)

    def peek_request(self) -> Request:
        if not self._heap:
            raise IndexError("peek from an empty heap")
        return self._heap[0]

    def prepend_request(self, request: Request) -> None:
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        self._heap.remove(request)
        heapq.heapify(self._heap)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        gone = set(requests)
        self._heap = [request for request in self._heap if request not in gone]
        heapq.heapify(self._heap)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        heap = self._heap[:]
        while heap:
            yield heapq.heappop(heap)


_QUEUES: dict[SchedulingPolicy, type[FCFSRequestQueue] | type[PriorityRequestQueue]] = {
    SchedulingPolicy.FCFS: FCFSRequestQueue,
    SchedulingPolicy.PRIORITY: PriorityRequestQueue,
    SchedulingPolicy.FAIR: PriorityRequestQueue,
}


def create_request_queue(policy: SchedulingPolicy) -> RequestQueue:
    """An empty queue for `policy`. Raises ValueError for an unknown policy."""
    if policy not in _QUEUES:
        known = ", ".join(member.value for member in SchedulingPolicy)
        raise ValueError(f"unknown scheduling policy: {policy!r}; it must be one of {known}")
    return _QUEUES[policy]()
