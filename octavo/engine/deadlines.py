"""Deadlines: estimates the time of steps, rejects requests that cannot meet theirs, and finds overdue ones.

Of the scheduler, this module sees only the events of an `Observer`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from octavo.types.observer import Observer
from octavo.types.outputs import EngineCoreOutputs, Rejection
from octavo.types.requests import EngineCoreRequest
from octavo.types.steps import SchedulerOutput

MEMORY = 0.98  # weight of earlier measurements at each step: about the last 50 steps count
LEAST_STEPS = 10  # steps to measure before any request is rejected
# After so long without a step the estimate is ignored. Otherwise an estimate that rejects every request could
# never be corrected.
STALE_S = 1.0


class StepTimes(Observer):
    """Estimates how long a step takes: a fixed time, and a time for each token.

    The estimate is a straight line through the last steps, by least squares with fading weights (Recursive
    Least Squares with exponential forgetting, in sums).

    The time of a step runs to its end from the last event before that: its own plan, the next step's plan or
    the end of the previous step. With steps in flight this leaves out the core's own work, which overlaps
    with them, and the time in which no caller asked for a result.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_event = 0.0
        self._num_steps = 0
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def step_planned(self, output: SchedulerOutput) -> None:
        self._last_event = self._clock()

    def step_done(self, output: SchedulerOutput | None, outputs: EngineCoreOutputs) -> None:
        now = self._clock()
        if output is not None and output.total_num_scheduled_tokens:
            self._add(output.total_num_scheduled_tokens, now - self._last_event)
        self._last_event = now

    def estimate_s(self, num_tokens: int, num_steps: int) -> float:
        """Seconds that `num_tokens` tokens in `num_steps` steps take at least. 0 while too few steps were
        measured, or when the last one is too long ago.
        """
        if self._num_steps < LEAST_STEPS or self._clock() - self._last_event > STALE_S:
            return 0.0
        variance = self._xx / self._weight - (self._x / self._weight) ** 2
        covariance = self._xy / self._weight - self._x * self._y / self._weight**2
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        # If all steps had equally many tokens, the time for a token is unknown: all time counts as fixed.
        token_s = max(covariance / variance, 0.0) if variance > 1e-9 * mean_x**2 else 0.0
        token_s = min(token_s, mean_y / mean_x)
        return num_steps * (mean_y - token_s * mean_x) + num_tokens * token_s

    def _add(self, x: float, y: float) -> None:
        self._num_steps += 1
        self._weight = MEMORY * self._weight + 1
        self._x = MEMORY * self._x + x
        self._y = MEMORY * self._y + y
        self._xx = MEMORY * self._xx + x * x
        self._xy = MEMORY * self._xy + x * y


class Deadlines:
    """Checks new requests against their deadlines, and finds the requests whose deadlines have passed."""

    def __init__(
        self, clock: Callable[[], float], step_times: StepTimes, max_num_batched_tokens: int
    ) -> None:
        self._clock = clock
        self._step_times = step_times
        self._max_num_batched_tokens = max_num_batched_tokens
        self._due: list[tuple[float, int, EngineCoreRequest]] = []  # a heap, the earliest first
        self._numbers = count()
        self._number_of: dict[str, int] = {}  # the number of each watched request in the heap, by id

    def check(self, request: EngineCoreRequest, num_prompt_tokens: int) -> Rejection | None:
        """Why `request` cannot meet its deadline at the measured speed; None if it can.

        The estimate is a lower bound, as if the request ran alone. It counts `num_prompt_tokens`, the tokens
        of its prompt that are not cached, and the fewest tokens that it can generate.
        """
        if request.deadline_s is None:
            return None
        params = request.sampling_params
        may_stop_early = not params.ignore_eos or params.stop or params.stop_token_ids
        least = params.min_tokens if may_stop_early or params.max_tokens is None else params.max_tokens
        num_outputs = max(least, 1)
        num_prompt_tokens = max(num_prompt_tokens, 1)
        num_steps = -(-num_prompt_tokens // self._max_num_batched_tokens) + num_outputs - 1
        needed_s = self._step_times.estimate_s(num_prompt_tokens + num_outputs - 1, num_steps)
        if 0 < request.deadline_s >= needed_s:
            return None
        return Rejection(
            f"deadline_s is {request.deadline_s:g}, and the request takes about {needed_s:.3g} s at the "
            "speed measured; give it more time",
            "deadline_s",
        )

    def watch(self, request: EngineCoreRequest) -> None:
        """Watch the deadline of `request`, if it has one, for `take_overdue`. Forget an earlier request with
        the same id.
        """
        self._number_of.pop(request.request_id, None)
        if request.deadline_s is not None:
            number = self._number_of[request.request_id] = next(self._numbers)
            heapq.heappush(self._due, (self._clock() + request.deadline_s, number, request))

    def take_overdue(self) -> list[tuple[str, float]]:
        """The ids and deadlines (in seconds) of the requests whose deadlines have passed since the last call.
        Requests that ended in time are among them.
        """
        overdue = []
        while self._due and self._due[0][0] <= self._clock():
            _, number, request = heapq.heappop(self._due)
            if self._number_of.get(request.request_id) == number and request.deadline_s is not None:
                del self._number_of[request.request_id]
                overdue.append((request.request_id, request.deadline_s))
        return overdue
