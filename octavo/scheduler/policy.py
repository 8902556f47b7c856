"""`Policy`: which of two requests is more urgent.

A policy gives each request its `order` once, when the request arrives. The smallest order is the most urgent.
It never changes while the request waits or runs. So queues and `running` stay sorted, and a preempted request
returns to its old position. No request starves, since only finitely many of the requests that arrive after it
get a smaller order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from octavo.config import SchedulerConfig
from octavo.scheduler.request import Request
from octavo.scheduler.request_queue import SchedulingPolicy


class Policy:
    """First come, first served. Other policies override its methods."""

    def __init__(self) -> None:
        self._num_ranked = 0

    def rank(self, request: Request) -> None:
        """Set the order of `request`, which arrives now.

        The order is a count and not a time, since clocks step back, and answers to one prompt share a time.
        """
        request.order = (self._next_number(),)

    def begin(self, request: Request) -> None:
        """Note that `request` begins to run, at first or after a preemption."""

    def end(self, request: Request) -> None:
        """Note that `request` has finished. It still has its tokens and its row."""

    def displaces(self, waiting: Request, running: Request) -> bool:
        """Whether `running`, the least urgent running request, is to be preempted if `waiting` cannot run
        otherwise.
        """
        return False

    def _next_number(self) -> int:
        self._num_ranked += 1
        return self._num_ranked


class PriorityPolicy(Policy):
    """A lower priority number is more urgent. Ties go by arrival, then by id.

    `aging_s` seconds of waiting count as much as one level of priority, so that a stream of urgent requests
    cannot keep others waiting for ever. 0 = no aging.
    """

    def __init__(self, aging_s: float) -> None:
        super().__init__()
        self.aging_s = aging_s

    def rank(self, request: Request) -> None:
        # The difference of two orders is the same at all times: aging needs no update.
        priority, arrival_time = request.priority, request.arrival_time
        level = priority + (arrival_time / self.aging_s if self.aging_s else 0.0)
        request.order = (level, priority, arrival_time, request.request_id)


class FairPolicy(Policy):
    """Tenants share the engine by their weights. Each tenant's own requests are first come, first served.

    Start-time Fair Queueing: A Scheduling Algorithm for Integrated Services Packet Switching Networks (1996).
    The cost of a request is its tokens, prompt and the most it may generate, divided by its tenant's weight.
    Its virtual start is the virtual end of the tenant's request before it, or the virtual time if that is
    later. So a tenant that has had less than its share has earlier starts, and an idle tenant collects no
    credit. Tokens that a request was charged for and did not use make its tenant's next starts earlier.

    The virtual time is the smallest (start + computed tokens / weight) over the running requests. (In the
    paper one request runs at a time.) It only grows, so the start of every waiting request is reached
    eventually. A new request comes before all but the first of the many that another tenant has running.

    A waiting request displaces the least urgent running request of another tenant, if it can run in no other
    way: a tenant with many requests must not hold all rows and blocks.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        super().__init__()
        self.weights = dict(weights)
        self.virtual_time = 0.0
        self._ends: dict[str, float] = {}  # by tenant: the virtual end of its last request
        self._num_unfinished: Counter[str] = Counter()
        self._begun: set[Request] = set()

    def rank(self, request: Request) -> None:
        self._update_virtual_time()
        start = max(self._ends.get(request.tenant, 0.0), self.virtual_time)
        self._ends[request.tenant] = start + request.max_length / self._weight(request)
        self._num_unfinished[request.tenant] += 1
        request.order = (start, self._next_number())

    def begin(self, request: Request) -> None:
        self._begun.add(request)

    def end(self, request: Request) -> None:
        self._update_virtual_time()
        tenant = request.tenant
        num_used = request.num_tokens if request in self._begun else 0
        self._ends[tenant] -= (request.max_length - num_used) / self._weight(request)
        self._begun.discard(request)
        self._num_unfinished[tenant] -= 1
        if not self._num_unfinished[tenant]:
            del self._num_unfinished[tenant]
            if len(self._ends) > 2 * len(self._num_unfinished):
                self._forget_idle_tenants()

    def displaces(self, waiting: Request, running: Request) -> bool:
        return waiting.tenant != running.tenant and waiting < running

    def _update_virtual_time(self) -> None:
        running = [request for request in self._begun if request.row >= 0]
        if running:
            reached = min(each.order[0] + each.num_computed_tokens / self._weight(each) for each in running)
            self.virtual_time = max(self.virtual_time, reached)

    def _forget_idle_tenants(self) -> None:
        """Drop the ends that make no difference: those that are past, or all if no tenant has a request."""
        self._ends = {
            tenant: end
            for tenant, end in self._ends.items()
            if tenant in self._num_unfinished or (self._num_unfinished and end > self.virtual_time)
        }

    def _weight(self, request: Request) -> float:
        return self.weights.get(request.tenant, 1.0)


def create_policy(config: SchedulerConfig) -> Policy:
    """The policy that `config` asks for."""
    policy = SchedulingPolicy(config.scheduling_policy)
    if policy is SchedulingPolicy.PRIORITY:
        return PriorityPolicy(config.priority_aging_s)
    if policy is SchedulingPolicy.FAIR:
        return FairPolicy(config.tenant_weights or {})
    return Policy()
