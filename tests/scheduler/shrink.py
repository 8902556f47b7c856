"""A random world that fails, told by the few events that are needed for the failure.

`failure_of(seed)` runs a world. `shrink(seed, failure)` then leaves out events as long as the world still
fails in the same way: first all of them, then half of what is left, then a quarter, down to single events
(compare "ddmin" in Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002).
`failure_of(seed, events)` runs the small world again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from tests.fakes import BrokenContract
from tests.scheduler.world import Event, World

MOST_RUNS = 2000  # of one shrinking: a minute at the most


class Failure:
    """What a world broke with, and the events until then."""

    def __init__(self, error: BaseException, events: Sequence[Event]) -> None:
        self.error = error
        self.events = list(events)

    def is_like(self, other: Failure | None) -> bool:
        """Whether the same check failed: an error of the same type, raised by the same line."""
        return other is not None and self._place() == other._place()

    def _place(self) -> tuple[type[BaseException], str, int]:
        traceback = self.error.__traceback__
        assert traceback is not None
        while traceback.tb_next is not None:
            traceback = traceback.tb_next
        return type(self.error), traceback.tb_frame.f_code.co_filename, traceback.tb_lineno


def failure_of(
    seed: int, only: Collection[Event] | None = None, make_world: Callable[..., World] = World
) -> Failure | None:
    """Run the world of `seed`, with all its events or `only` some; None if every promise holds."""
    world = make_world(seed, only)
    try:
        world.run()
    except (Exception, BrokenContract) as error:  # noqa: BLE001 - whatever breaks a world is its failure
        return Failure(error, world.events)
    return None


def shrink(seed: int, failure: Failure, make_world: Callable[..., World] = World) -> Failure:
    """The same failure with as few events as leaving some out gives."""
    num_runs = 0
    size = len(failure.events)
    while size > 0 and num_runs < MOST_RUNS:
        start, num_events = 0, len(failure.events)
        while start < len(failure.events) and num_runs < MOST_RUNS:
            fewer = failure.events[:start] + failure.events[start + size :]
            smaller = failure_of(seed, frozenset(fewer), make_world)
            num_runs += 1
            if failure.is_like(smaller):
                assert smaller is not None
                failure = smaller
            else:
                start += size
        is_done = size == 1 and len(failure.events) == num_events
        size = 0 if is_done else max(1, min(size // 2, len(failure.events)))
    return failure


def report(seed: int, failure: Failure) -> str:
    """The failure in words, and how to see it again."""
    lines = [f"the world of seed {seed} broke: {failure.error!r}"]
    lines += [f"    before step {step}: {name} {subject}".rstrip() for step, name, subject in failure.events]
    lines += [f"run it again: failure_of({seed}, {failure.events})"]
    return "\n".join(lines)
