"""`Policy`: who is more urgent than whom.

A policy gives each request its `order` once, when it comes (a session: with each turn), and the smallest is
the most urgent. Orders never change while a request waits or runs, so queues and `running` stay sorted, a
preempted request comes back where it was, and nobody starves: of all that come later only finitely many get
an order before one's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from octavo.config import SchedulerConfig
from octavo.scheduler.request import Request
from octavo.scheduler.request_queue import SchedulingPolicy


class Policy:
    """First come, first served; and what a policy may do otherwise."""

    def __init__(self) -> None:
        self._num_ranked = 0

    def rank(self, request: Request) -> None:
        """Give `request`, which comes now, its order.

        By a count: clocks step back, and answers to one prompt share a time.
        """
        request.order = (self._next_number(),)

    def begin(self, request: Request) -> None:
        """It begins to run."""

    def end(self, request: Request) -> None:
        """It has finished, in whatever state it was, and still has what it had."""

    def displaces(self, waiting: Request, running: Request) -> bool:
        """Whether `running`, the least urgent that runs, must give way to `waiting` if it cannot run else."""
        return False

    def _next_number(self) -> int:
        self._num_ranked += 1
        return self._num_ranked


class PriorityPolicy(Policy):
    """The lower the priority's number, the more urgent; then by arrival, then by id.

    `aging_s` seconds of waiting count as much as one level of priority, so that a stream of urgent requests
    cannot keep others waiting for ever; 0 = they can.
    """

    def __init__(self, aging_s: float) -> None:
        super().__init__()
        self.aging_s = aging_s

    def rank(self, request: Request) -> None:
        """An arrival `aging_s` earlier makes up for one level, whenever the two are compared."""
        priority, arrival_time = request.priority, request.arrival_time
        level = priority + (arrival_time / self.aging_s if self.aging_s else 0.0)
        request.order = (level, priority, arrival_time, request.request_id)


class FairPolicy(Policy):
    """Tenants share the engine by their weights, each tenant's own requests first come, first served.

    Start-time Fair Queueing: A Scheduling Algorithm for Integrated Services Packet Switching Networks (1996).
    A request is worth its tokens, prompt and the most it may generate, divided by its tenant's weight. It
    starts, in virtual time, when the tenant's request before it ends, or now if that is later. Whoever has
    had less than its share has an earlier start, and one that was idle gets no credit for it. What a request
    was charged and did not use is given back to what its tenant asks next.

    Now, in virtual time, is how far the one that runs and is least far has come. (In the paper one runs at a
    time.) So a newcomer comes before all but the first of the many that another tenant has running, and time
    goes on with every token of those who come and go: nobody's start is ahead of it for ever.

    A request that waits takes the place of the least urgent one of another tenant that runs, if that is all
    that keeps it from running: a tenant with many requests must not hold all places.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        super().__init__()
        self.weights = dict(weights)
        self.virtual_time = 0.0
        self._ends: dict[str, float] = {}  # tenant: when, in virtual time, its last request ends
        self._num_unfinished: Counter[str] = Counter()
        self._begun: set[Request] = set()

    def rank(self, request: Request) -> None:
        """By its virtual start, then by coming."""
        self._update_virtual_time()
        start = max(self._ends.get(request.tenant, 0.0), self.virtual_time)
        self._ends[request.tenant] = start + request.max_length / self._weight(request)
        self._num_unfinished[request.tenant] += 1
        request.order = (start, self._next_number())

    def begin(self, request: Request) -> None:
        """Virtual time goes on as it does."""
        self._begun.add(request)

    def end(self, request: Request) -> None:
        """Its tenant's requests to come start earlier by what it did not use."""
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
        """For a more urgent one of another tenant."""
        return waiting.tenant != running.tenant and waiting < running

    def _update_virtual_time(self) -> None:
        running = [request for request in self._begun if request.row >= 0]
        if running:
            reached = min(each.order[0] + each.num_computed_tokens / self._weight(each) for each in running)
            self.virtual_time = max(self.virtual_time, reached)

    def _forget_idle_tenants(self) -> None:
        """Drop what makes no difference: ends that are past, and all when nobody is there to compare with."""
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
