"""The borders between core, executor, worker and the features that plug into the worker.

(The scheduler's own plug, `Constraint`, is in `octavo.scheduler.constraint`: it speaks of `Request`, which
only the core knows.)
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from octavo.types.batch import Batch
from octavo.types.sampling import SamplerOutput
from octavo.types.steps import ModelRunnerOutput, NewRequestData, SchedulerOutput

Result = TypeVar("Result", covariant=True)


class Pending(Protocol[Result]):
    """Something that is being computed."""

    def result(self) -> Result:
        """Wait for it. Raises what went wrong."""


class Executor(Protocol):
    """Runs steps on one worker or many, in the order they come. The core calls the two halves of a step
    strictly in turn, and perhaps those of the next before the first has run. Neither call raises what goes
    wrong in the step: `result` does.
    """

    def execute_model(self, output: SchedulerOutput) -> None:
        """Run the model over the step's tokens. May return before the work is done."""

    def sample_tokens(self) -> Pending[ModelRunnerOutput]:
        """Sample from the logits of the step that `execute_model` began: its results, once they are there."""

    def close(self) -> None:
        """Let steps that have begun end, and give back threads. May be called again."""


class Extension(Protocol):
    """A feature's worker half: acts at four fixed points of a step, and keeps its own state by row."""

    def admit(self, request: NewRequestData) -> None:
        """A request takes `request.row`; whatever was kept for that row is void."""

    def before_forward(self, output: SchedulerOutput, batch: Batch) -> None:
        """The step's input is laid out; nothing has run."""

    def after_forward(self, batch: Batch, hidden: Any) -> None:
        """`hidden` is the backend's handle on the hidden states [T, hidden], valid in this step."""

    def after_sample(self, batch: Batch, sampled: SamplerOutput, output: ModelRunnerOutput) -> None:
        """Tokens are sampled. Results of the feature's own go into `output`."""
