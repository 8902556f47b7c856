"""Where requests wait until they get KV cache blocks, in the order of a policy.

The scheduling loop only peeks and pops; which request comes first is the queue's business. A new policy is a
new subclass.
"""

from __future__ import annotations

import enum
import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator

from octavo.scheduler.request import Request


class SchedulingPolicy(enum.Enum):
    """Who goes first."""

    FCFS = "fcfs"
    PRIORITY = "priority"
    FAIR = "fair"


class RequestQueue(ABC):
    """A queue of waiting requests."""

    @abstractmethod
    def add_request(self, request: Request) -> None:
        """Put `request` where the policy wants it."""

    @abstractmethod
    def pop_request(self) -> Request:
        """Take the request that is next. Raises IndexError when empty."""

    @abstractmethod
    def peek_request(self) -> Request:
        """The request that is next, left in place. Raises IndexError when empty."""

    @abstractmethod
    def prepend_request(self, request: Request) -> None:
        """Put `request` back at the front, as far as the policy has one."""

    @abstractmethod
    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """`prepend_request` each in turn: under FCFS they end up in front in reverse order."""

    @abstractmethod
    def remove_request(self, request: Request) -> None:
        """Take `request` out. O(n). Raises ValueError when it is not in the queue."""

    @abstractmethod
    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Take out all of `requests` that are in the queue. O(n)."""

    @abstractmethod
    def __bool__(self) -> bool: ...

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Request]:
        """The requests in the order in which they would be popped; the queue stays as it is."""


class FCFSRequestQueue(deque[Request], RequestQueue):
    """First come, first served: a deque with other names."""

    def add_request(self, request: Request) -> None:
        """Last in line."""
        self.append(request)

    def pop_request(self) -> Request:
        """First in line."""
        return self.popleft()

    def peek_request(self) -> Request:
        """First in line, left there."""
        if not self:
            raise IndexError("peek from an empty queue")
        return self[0]

    def prepend_request(self, request: Request) -> None:
        """First in line again."""
        self.appendleft(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """First in line, the last of `requests` foremost."""
        self.extendleft(requests)

    def remove_request(self, request: Request) -> None:
        """Search the line."""
        self.remove(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Rebuild the line without them: a deque cannot drop from its middle in place."""
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
    """The most urgent first (`Request.__lt__`): a heap. It has no front to prepend to."""

    def __init__(self) -> None:
        self._heap: list[Request] = []

    def add_request(self, request: Request) -> None:
        """O(log n)."""
        heapq.heappush(self._heap, request)

    def pop_request(self) -> Request:
        """O(log n)."""
        if not self._heap:
            raise IndexError("pop from an empty heap")
        return heapq.heappop(self._heap)

    def peek_request(self) -> Request:
        """O(1)."""
        if not self._heap:
            raise IndexError("peek from an empty heap")
        return self._heap[0]

    def prepend_request(self, request: Request) -> None:
        """The same as `add_request`: the request's priority decides."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """The same as adding each."""
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        """Search the heap and put it in order again."""
        self._heap.remove(request)
        heapq.heapify(self._heap)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Filter the heap and put it in order again."""
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
    SchedulingPolicy.FAIR: PriorityRequestQueue,  # whose virtual start is the earliest (`FairPolicy`)
}


def create_request_queue(policy: SchedulingPolicy) -> RequestQueue:
    """An empty queue that follows `policy`. Raises ValueError for a policy it does not know."""
    if policy not in _QUEUES:
        known = ", ".join(member.value for member in SchedulingPolicy)
        raise ValueError(f"unknown scheduling policy: {policy!r}; it must be one of {known}")
    return _QUEUES[policy]()
