"""`EngineCore`: the step. Token ids in, token ids out; knows neither text, nor tensors, nor processes."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.logs import get_logger
from octavo.scheduler.request import RequestStatus
from octavo.scheduler.scheduler import Scheduler
from octavo.types.outputs import EngineCoreOutput, EngineCoreOutputs
from octavo.types.protocols import Executor
from octavo.types.requests import EngineCoreRequest

logger = get_logger(__name__)


class EngineCore:
    """Owns the scheduler and the executor, and drives them in turn."""

    def __init__(self, scheduler: Scheduler, executor: Executor) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self._interrupted: list[EngineCoreOutput] = []  # ended by an interrupt, and not yet told

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a request. Raises RequestError for one that can never run."""
        self.scheduler.add_request(request)

    def abort_requests(self, request_ids: Iterable[str] | None) -> list[EngineCoreOutput]:
        """End requests now (None = all), whatever they are doing. Unknown or ended ids are ignored."""
        return self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)

    def has_unfinished_requests(self) -> bool:
        """Whether another step would do anything."""
        return self.scheduler.has_unfinished_requests()

    def step(self) -> EngineCoreOutputs:
        """Schedule, run, sample, update: one step.

        A step that fails ends its own requests with an error; the engine and everyone else go on. So does one
        that is interrupted (KeyboardInterrupt), which is raised; who it ended is told by the next step. Where
        already the planning fails, nobody's state can be trusted, and every request ends.
        """
        output = None
        try:
            output = self.scheduler.schedule()
            self.executor.execute_model(output)
            outputs = self.scheduler.update_from_output(output, self.executor.sample_tokens())
        except BaseException as error:  # the core's one boundary handler: anything may go wrong under a step
            outputs = self.scheduler.fail_step(output, f"{type(error).__name__}: {error}")
            if not isinstance(error, Exception):
                self._interrupted += outputs.outputs
                raise
            logger.exception("a step failed, and with it %d requests", len(outputs.outputs))
        outputs.outputs[:0] = self._interrupted
        self._interrupted = []
        return outputs

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. Returns False, changing nothing, while requests run."""
        return self.scheduler.kv_cache.reset_prefix_cache()
