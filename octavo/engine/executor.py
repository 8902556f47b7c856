"""`InprocExecutor`: one worker, in this process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor as Lane
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from octavo.types.protocols import Pending
from octavo.types.steps import ModelRunnerOutput, SchedulerOutput


class Runner(Protocol):
    """The two halves of a step, called strictly in turn (`ModelRunner`)."""

    def execute_model(self, output: SchedulerOutput) -> None:
        """Run the model over the step's tokens."""

    def sample_tokens(self) -> Pending[ModelRunnerOutput]:
        """Sample from its logits."""


class InprocExecutor:
    """Runs each step on its one runner: in the calling thread, or, where steps are to overlap with the
    caller's work (`threaded`), in a thread of their own, one after the other.
    """

    def __init__(self, runner: Runner, threaded: bool = False) -> None:
        self.runner = runner
        self._lane: Lane = ThreadPoolExecutor(1, "octavo-worker") if threaded else _CallersThread()
        self._executed: Future[None] = Future()

    def execute_model(self, output: SchedulerOutput) -> None:
        self._executed = self._lane.submit(self.runner.execute_model, output)

    def sample_tokens(self) -> Pending[ModelRunnerOutput]:
        return _Sampled(self._lane.submit(self._sample, self._executed))

    def close(self) -> None:
        self._lane.shutdown()

    def _sample(self, executed: Future[None]) -> Pending[ModelRunnerOutput]:
        executed.result()  # raises what went wrong there
        return self.runner.sample_tokens()


class _Sampled:
    """The results of a step whose sampling may not even have begun. Whoever asks for them waits, so that the
    runner's thread can go on with the next step.
    """

    def __init__(self, begun: Future[Pending[ModelRunnerOutput]]) -> None:
        self._begun = begun

    def result(self) -> ModelRunnerOutput:
        """Wait for the results. Raises what went wrong in the step."""
        return self._begun.result().result()


class _CallersThread(Lane):
    """Calls at once. What is raised comes out of the future, as it does with a thread."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The result of `function(...)`, or what it raised."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            future.set_exception(error)
        return future
