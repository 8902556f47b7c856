"""`Constraint`: what may shrink or veto a request's share of a step, and the ones the scheduler always has.

A feature's core half is a constraint too. `limit` is pure and `commit` runs only once blocks are secured, so
a request that does not fit leaves no trace and nothing is ever rolled back.
"""

from __future__ import annotations

from typing import Protocol

from octavo.scheduler.budget import StepBudget
from octavo.scheduler.request import Request, RequestStatus


class Constraint(Protocol):
    """One rule about who may run how many tokens in a step."""

    # Whether a veto ends the planning of the step; otherwise it only passes over the one request.
    blocks_queue: bool

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        """How many of the `count` tokens from `start` on the request may run; 0 = not in this step. Pure."""

    def commit(self, request: Request, start: int, count: int, budget: StepBudget) -> None:
        """The request will run these tokens: reserve what that takes, write into the plan."""

    def release(self, request: Request) -> None:
        """The request finished or was preempted: give back what `commit` reserved."""


class StatelessConstraint:
    """A constraint that reserves nothing."""

    blocks_queue = False

    def commit(self, request: Request, start: int, count: int, budget: StepBudget) -> None:
        """Nothing to reserve."""

    def release(self, request: Request) -> None:
        """Nothing to give back."""


class LongPrefill(StatelessConstraint):
    """A prompt that shares the step runs at most `threshold` tokens, so that short ones get in."""

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        """The threshold, unless nobody else wants a share of the step."""
        return min(count, self.threshold) if budget.num_candidates > 1 else count


class TokenBudget(StatelessConstraint):
    """A step runs so many tokens and no more; what does not fit waits for the next step (chunked prefill)."""

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        """What is left of the step: never 0, since a step that is full is over."""
        return min(count, budget.num_tokens)


class StepAlignment(StatelessConstraint):
    """Steps that cross a block's end stop at one, so that there is a recurrent state to be cached."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        """Up to the last multiple of `alignment` after `start`, if there is one."""
        aligned = (start + count) // self.alignment * self.alignment
        return aligned - start if aligned > start else count


class WholePrompts(StatelessConstraint):
    """Chunked prefill is off: a request starts only in a step that has room for all of its tokens."""

    blocks_queue = True

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        """All or nothing for a request that starts."""
        starts = request.status is not RequestStatus.RUNNING
        return 0 if starts and count > budget.num_tokens else count
