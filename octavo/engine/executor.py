"""`InprocExecutor`: one worker, in this process."""

from __future__ import annotations

from octavo.types.steps import ModelRunnerOutput, SchedulerOutput
from octavo.worker.model_runner import ModelRunner


class InprocExecutor:
    """Runs each step on its one `ModelRunner`, in the calling thread."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner

    def execute_model(self, output: SchedulerOutput) -> None:
        """See `Executor`."""
        self.runner.execute_model(output)

    def sample_tokens(self) -> ModelRunnerOutput:
        """See `Executor`."""
        return self.runner.sample_tokens()
