"""`EngineCore`: the step. Token ids in, token ids out; knows neither text, nor tensors, nor processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from octavo.engine.deadlines import Deadlines
from octavo.logs import get_logger
from octavo.scheduler.request import RequestStatus
from octavo.scheduler.scheduler import Scheduler
from octavo.types.outputs import EngineCoreOutput, EngineCoreOutputs
from octavo.types.protocols import Executor, Pending
from octavo.types.requests import EngineCoreRequest
from octavo.types.steps import ModelRunnerOutput, PauseState, SchedulerOutput

logger = get_logger(__name__)


class EngineCore:
    """Owns the scheduler and the executor, and drives them in turn."""

    def __init__(self, scheduler: Scheduler, executor: Executor, deadlines: Deadlines) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.deadlines = deadlines
        self.depth = scheduler.config.pipeline_depth
        self._in_flight: deque[tuple[SchedulerOutput, Pending[ModelRunnerOutput]]] = deque()

    def step(self) -> EngineCoreOutputs:
        """Schedule, run, sample, update: one step.

        Up to `depth` steps are in flight: with 2, one is planned while the one before it runs. A step that
        fails ends its own requests with an error; the engine and everyone else go on. So does one that is
        interrupted (KeyboardInterrupt), which is raised; who it ended is told by the next step. Where already
        the planning fails, nobody's state can be trusted, and every request ends.
        """
        self._end_overdue()
        output = None
        try:
            while len(self._in_flight) < self.depth and self.scheduler.has_requests():
                self._launch(self.scheduler.schedule())
        except BaseException as error:  # the core's boundary handlers: anything may go wrong under a step
            self.scheduler.fail_all(_describe(error))
            if not isinstance(error, Exception):
                raise
            logger.exception("a step could not be planned: every request has failed")
        if self._in_flight:
            output, pending = self._in_flight.popleft()
            try:
                return self.scheduler.update_from_output(output, pending.result())
            except BaseException as error:
                self.scheduler.fail_step(output, _describe(error))
                if not isinstance(error, Exception):
                    raise
                logger.exception("a step failed, and with it its requests")
        return self.scheduler.take_news(output)

    def _launch(self, output: SchedulerOutput) -> None:
        self.executor.execute_model(output)
        self._in_flight.append((output, self.executor.sample_tokens()))

    def _end_overdue(self) -> None:
        for request in self.deadlines.take_overdue():
            self.scheduler.fail_overdue(request)

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a request, or the next turn of a session. Raises RequestError for one that can never run, or
        not in time.
        """
        if request.deadline_s is not None:
            self.deadlines.check(request, self.scheduler.num_tokens_to_compute(request))
        self.scheduler.add_request(request)
        self.deadlines.watch(request)

    def abort_requests(self, request_ids: Iterable[str] | None) -> list[EngineCoreOutput]:
        """End requests now (None = all), whatever they are doing. Unknown or ended ids are ignored."""
        return self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)

    def stop_requests(self, request_ids: Iterable[str]) -> None:
        """End requests whose text has come to a stop string, of a session the turn. Nothing more is heard."""
        self.scheduler.stop_requests(request_ids)

    def stop_turns(self, request_id: str) -> None:
        """End the turns of a session that are under way or to come; it goes on. Nothing is heard of them."""
        self.scheduler.stop_turns(request_id)

    def has_unfinished_requests(self) -> bool:
        """Whether another step would do anything for anyone."""
        return self.scheduler.has_unfinished_requests()

    def pause(self, state: PauseState) -> None:
        """Let nothing run, or only what has begun; PauseState.UNPAUSED lets all go on."""
        self.scheduler.pause(state)

    def has_begun_requests(self) -> bool:
        """Whether a request has begun and not ended: while new ones are paused, what there is to drain."""
        return self.scheduler.has_begun_requests()

    def close(self) -> None:
        """End all requests, and let go of threads and sockets. May be called again."""
        self.abort_requests(None)
        self._in_flight.clear()
        self.executor.close()
        self.scheduler.observer.close()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes. Returns False, changing nothing, while requests hold blocks; those can
        be made to give them up and to begin again.
        """
        if reset_running_requests:
            self.scheduler.preempt_all()
        return self.scheduler.kv_cache.reset_prefix_cache()


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
