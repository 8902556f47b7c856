"""`InprocExecutor`: one worker, in this process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor as FuturesExecutor
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from octavo.types.protocols import Pending
from octavo.types.steps import ModelRunnerOutput, SchedulerOutput


class Runner(Protocol):
    """Runs the two halves of a step, which are called strictly in turn (`ModelRunner`)."""

    def execute_model(self, output: SchedulerOutput) -> None:
        """Run the model over the step's tokens."""

    def sample_tokens(self) -> Pending[ModelRunnerOutput]:
        """Sample from the logits of the step that `execute_model` ran."""


class InprocExecutor:
    """Runs steps on one runner, one after the other. `threaded` runs them in another thread, so that they
    overlap with the caller's work; else they run in the calling thread.
    """

    def __init__(self, runner: Runner, threaded: bool = False) -> None:
        self.runner = runner
        self._runner_thread: FuturesExecutor = (
            ThreadPoolExecutor(1, "octavo-worker") if threaded else _CallersThread()
        )
        self._executed: Future[None] = Future()

    def execute_model(self, output: SchedulerOutput) -> None:
        self._executed = self._runner_thread.submit(self.runner.execute_model, output)

    def sample_tokens(self) -> Pending[ModelRunnerOutput]:
        return _Sampled(self._runner_thread.submit(self._sample, self._executed))

    def close(self) -> None:
        self._runner_thread.shutdown()

    def _sample(self, executed: Future[None]) -> Pending[ModelRunnerOutput]:
        executed.result()  # raises the error of execute_model
        return self.runner.sample_tokens()


class _Sampled:
    """The results of a step whose sampling may not have begun. The caller of `result` waits for them, and not
    the runner's thread, which goes on with the next step.
    """

    def __init__(self, begun: Future[Pending[ModelRunnerOutput]]) -> None:
        self._begun = begun

    def result(self) -> ModelRunnerOutput:
        """Wait for the results. Raises the error of the step."""
        return self._begun.result().result()


class _CallersThread(FuturesExecutor):
    """An executor that calls functions at once, in the calling thread."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `function`. Returns a future that has its result or its exception."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - raised by `Future.result`
            future.set_exception(error)
        return future
