"""The protocols between core, executor and worker, and the worker and front-end halves of a feature.

The core half, `Constraint`, is in `octavo.scheduler.constraint`, because its methods take a `Request`, which
only the core knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from octavo.types.adjustments import LogitsAdjustments
from octavo.types.batch import Batch
from octavo.types.params import SamplingParams
from octavo.types.sampling import SamplerOutput
from octavo.types.steps import ModelRunnerOutput, NewRequestData, SchedulerOutput

Result = TypeVar("Result", covariant=True)
Value = TypeVar("Value")


class Pending(Protocol[Result]):
    """A result that is being computed."""

    def result(self) -> Result:
        """Wait for the result and return it. Raises the error of the computation."""


@dataclass(frozen=True, slots=True)
class Done(Generic[Value]):
    """A result that is already known. Implements `Pending`."""

    value: Value

    def result(self) -> Value:
        return self.value


class Executor(Protocol):
    """Runs steps on one worker or many, in the order of the calls.

    The core calls `execute_model` and `sample_tokens` in turn, and may call them for the next step before the
    first step has run. Neither call raises an error of the step: `Pending.result` does.
    """

    def execute_model(self, output: SchedulerOutput) -> None:
        """Run the model over the step's tokens. May return before the work is done."""

    def sample_tokens(self) -> Pending[ModelRunnerOutput]:
        """Sample from the logits of the step that `execute_model` began."""

    def close(self) -> None:
        """Wait for the steps that have begun, and release threads. May be called again."""


class Extension:
    """A feature's worker half. It acts at five fixed points of a step and keeps its own state by row.

    Override the points that the feature needs. With steps in flight, `after_sample` of a step runs before
    `before_sample` of the next step, but perhaps after the next step's `before_forward`.
    """

    def admit(self, request: NewRequestData) -> None:
        """Replace the state of row `request.row`, which `request` takes."""

    def before_forward(self, output: SchedulerOutput, batch: Batch) -> None:
        """Put inputs for the model into `batch.inputs`. Nothing of the step has run."""

    def after_forward(self, batch: Batch, hidden: Any) -> None:
        """Use `hidden`, the backend's handle on the hidden states [T, hidden]. It is valid in this step."""

    def before_sample(self, batch: Batch, adjustments: LogitsAdjustments) -> None:
        """Restrict, bias or penalize tokens in the step's rows of logits, by calls on `adjustments`."""

    def after_sample(self, batch: Batch, sampled: SamplerOutput, output: ModelRunnerOutput) -> None:
        """Update the feature's state with the sampled tokens, and add its results to `output`."""


class RequestHandler:
    """A feature's front-end half: checks requests, and converts their data and results.

    Override the methods that the feature needs.
    """

    def prepare(self, params: SamplingParams, prompt_token_ids: Sequence[int]) -> Any:
        """Check a request. Returns plain data (`feature_data`) for the feature's other halves; None = none.

        Raises RequestError, naming the field.
        """

    def make_result(self, result: Any, params: SamplingParams) -> Any:
        """Convert a result of the worker half (`ModelRunnerOutput.add_result`) to its form for users."""
        return result
