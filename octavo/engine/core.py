"""`EngineCore`: the step. Token ids in, token ids out; knows neither text, nor tensors, nor processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from octavo.engine.deadlines import Deadlines
from octavo.logs import get_logger
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.update import PlannedStep
from octavo.types.outputs import EngineCoreOutput, EngineCoreOutputs
from octavo.types.protocols import Executor, Pending
from octavo.types.requests import EngineCoreRequest
from octavo.types.steps import ModelRunnerOutput, PauseState

logger = get_logger(__name__)

# The longest that a step without tokens waits for a preparation. Requests that arrive meanwhile wait
# too.
PREPARATION_WAIT_S = 0.005


class EngineCore:
    """Owns the scheduler and the executor, and calls them in turn."""

    def __init__(self, scheduler: Scheduler, executor: Executor, deadlines: Deadlines) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.deadlines = deadlines
        self.depth = scheduler.config.pipeline_depth
        self._in_flight: deque[tuple[PlannedStep, Pending[ModelRunnerOutput]]] = deque()  # the oldest first

    def step(self) -> EngineCoreOutputs:
        """Run one step: schedule, execute, sample, update. Returns the outputs of the oldest step in flight.

        Up to `depth` steps are in flight: with 2, one is planned while the one before it runs. If a step
        fails or is interrupted (KeyboardInterrupt), its own requests end with an error; the engine and all
        other requests go on. An interrupt is raised again, and the next call returns the outputs of the
        requests that it ended. If planning fails, no request's state can be trusted, and every request ends.
        """
        self._end_overdue()
        step = None
        try:
            while len(self._in_flight) < self.depth and self.scheduler.has_requests():
                self._launch(self.scheduler.schedule())
        except BaseException as error:  # a boundary handler: a step may raise anything
            self.scheduler.fail_all(_describe(error))
            if not isinstance(error, Exception):
                raise
            logger.exception("a step could not be planned: every request has failed")
        if self._in_flight:
            step, pending = self._in_flight.popleft()
            try:
                return self.scheduler.update_from_output(step, pending.result())
            except BaseException as error:
                self.scheduler.fail_step(step, _describe(error))
                if not isinstance(error, Exception):
                    raise
                logger.exception("a step failed, and with it its requests")
        return self.scheduler.take_outputs(step)

    def _launch(self, step: PlannedStep) -> None:
        if not step.output.total_num_scheduled_tokens:
            self.scheduler.table.wait_for_prepared(PREPARATION_WAIT_S)
        self.executor.execute_model(step.output)
        self._in_flight.append((step, self.executor.sample_tokens()))

    def _end_overdue(self) -> None:
        for request_id, deadline_s in self.deadlines.take_overdue():
            self.scheduler.fail_overdue(request_id, deadline_s)

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a request, or a turn of a session. If it can never run or cannot meet its deadline, it is
        rejected, and an output says why.
        """
        rejection = None
        if request.deadline_s is not None:
            rejection = self.deadlines.check(request, self.scheduler.table.num_tokens_to_compute(request))
        if rejection is not None:
            self.scheduler.reject(request, rejection)
        elif self.scheduler.add_request(request):
            self.deadlines.watch(request)

    def abort_requests(self, request_ids: Iterable[str] | None) -> list[EngineCoreOutput]:
        """End requests now (None = all requests and all sessions). Returns their last outputs.

        If a request is a turn of a session, the session ends too, and the next step returns the outputs of
        its other turns. Ids that are unknown or have ended are ignored.
        """
        return self.scheduler.table.abort_requests(request_ids)

    def stop_requests(self, request_ids: Iterable[str]) -> None:
        """End requests without an output. Their sessions go on. Unknown ids are ignored."""
        self.scheduler.table.stop_requests(request_ids)

    def end_session(self, session_id: str, error: str | None = None) -> None:
        """End a session without an output. With an `error`, each remaining turn gets an output with it."""
        self.scheduler.table.end_session(session_id, error)

    def has_unfinished_requests(self) -> bool:
        """Whether another step would compute or report anything."""
        return self.scheduler.has_unfinished_requests()

    def pause(self, state: PauseState) -> None:
        """Set which requests may run: none (PAUSED_ALL), begun ones (PAUSED_NEW), or all (UNPAUSED)."""
        self.scheduler.table.pause(state)

    def has_begun_requests(self) -> bool:
        """Whether any request has begun and not ended. With PAUSED_NEW, False means that all are drained."""
        return self.scheduler.table.has_begun_requests()

    def close(self) -> None:
        """End all requests, and release threads and sockets. May be called again."""
        self.abort_requests(None)
        self._in_flight.clear()
        self.executor.close()
        self.scheduler.table.observer.close()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes. Returns False, changing nothing, while requests hold blocks.

        With `reset_running_requests`, running requests are preempted first, and begin again.
        """
        if reset_running_requests:
            self.scheduler.table.preempt_all()
        return self.scheduler.kv_cache.reset_prefix_cache()

    def check(self) -> None:
        """Verify every invariant between requests, rows, blocks and steps. Raises AssertionError."""
        self.scheduler.check(step for step, _ in self._in_flight)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
