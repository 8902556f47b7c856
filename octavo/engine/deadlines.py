"""Deadlines: how long steps take, which requests cannot be done in time, and which have not been.

Knows the clock it is given, and of the scheduler only what an observer is told.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from octavo.errors import RequestError
from octavo.types.observer import Observer
from octavo.types.outputs import EngineCoreOutputs
from octavo.types.requests import EngineCoreRequest
from octavo.types.steps import SchedulerOutput

MEMORY = 0.98  # weight of what was measured before, at each step: about the last 50 steps count
LEAST_STEPS = 10  # measured before anything is refused
STALE_S = 1.0  # without a step nothing is known of the engine: else what refuses all could never learn better


class StepTimes(Observer):
    """How long a step takes, as a fixed time and a time a token: a straight line through the last steps.

    Least squares with weights that fade (Recursive Least Squares with exponential forgetting, in sums).

    A step counts from when the core was last heard of before its end: with steps in flight that leaves out
    the core's own work, which overlaps with them, and also the time in which nobody asked for a result.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_heard = 0.0
        self._num_steps = 0
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def step_planned(self, output: SchedulerOutput) -> None:
        """A step begins, or waits for those before it."""
        self._last_heard = self._clock()

    def step_done(self, output: SchedulerOutput | None, outputs: EngineCoreOutputs) -> None:
        """The oldest step in flight is through."""
        now = self._clock()
        if output is not None and output.total_num_scheduled_tokens:
            self._add(output.total_num_scheduled_tokens, now - self._last_heard)
        self._last_heard = now

    def estimate_s(self, num_tokens: int, num_steps: int) -> float:
        """Seconds that so many tokens in so many steps take at least; 0 while too little is known, or what is
        known is of long ago.
        """
        if self._num_steps < LEAST_STEPS or self._clock() - self._last_heard > STALE_S:
            return 0.0
        variance = self._xx / self._weight - (self._x / self._weight) ** 2
        covariance = self._xy / self._weight - self._x * self._y / self._weight**2
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        # Steps of one length say nothing of the part that grows: then all of it is fixed.
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
    """Watches over the requests that have one."""

    def __init__(
        self, clock: Callable[[], float], step_times: StepTimes, max_num_batched_tokens: int
    ) -> None:
        self._clock = clock
        self._step_times = step_times
        self._max_num_batched_tokens = max_num_batched_tokens
        self._due: list[tuple[float, int, EngineCoreRequest]] = []  # a heap, the next one first
        self._numbers = count()

    def check(self, request: EngineCoreRequest, num_prompt_tokens: int) -> None:
        """Raise RequestError for a deadline that is past, or that cannot be met at the measured speed.

        What the request must do at least counts, as if it ran alone: `num_prompt_tokens`, the part of its
        prompt that is not cached, and as many tokens as it will surely generate.
        """
        if request.deadline_s is None:
            return
        params = request.sampling_params
        may_stop_early = not params.ignore_eos or params.stop or params.stop_token_ids
        least = params.min_tokens if may_stop_early or params.max_tokens is None else params.max_tokens
        num_outputs = max(least, 1)
        num_prompt_tokens = max(num_prompt_tokens, 1)
        num_steps = -(-num_prompt_tokens // self._max_num_batched_tokens) + num_outputs - 1
        needed_s = self._step_times.estimate_s(num_prompt_tokens + num_outputs - 1, num_steps)
        if request.deadline_s <= 0 or needed_s > request.deadline_s:
            raise RequestError(
                f"deadline_s is {request.deadline_s:g}, and the request takes about {needed_s:.3g} s at the "
                "speed measured; give it more time",
                "deadline_s",
            )

    def watch(self, request: EngineCoreRequest) -> None:
        """From now on `take_overdue` will name it in time."""
        if request.deadline_s is not None:
            due = self._clock() + request.deadline_s
            heapq.heappush(self._due, (due, next(self._numbers), request))

    def take_overdue(self) -> list[EngineCoreRequest]:
        """The requests whose deadlines have passed since the last call, ended ones among them."""
        overdue = []
        while self._due and self._due[0][0] <= self._clock():
            overdue.append(heapq.heappop(self._due)[2])
        return overdue
