"""The borders between core, executor and worker, and the worker's and the front end's halves of a feature.

The core's half, `Constraint`, is in `octavo.scheduler.constraint`: it speaks of `Request`, which only the
core knows.
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
        """Wait for the result and return it. Raises what went wrong."""


@dataclass(frozen=True, slots=True)
class Done(Generic[Value]):
    """A result that is there already. Implements `Pending`."""

    value: Value

    def result(self) -> Value:
        """The result."""
        return self.value


class Executor(Protocol):
    """Runs steps on one worker or many, in the order in which they come.

    The core calls the two halves of a step in turn, and may call those of the next step before the first has
    run. Neither call raises what goes wrong in the step: `result` does.
    """

    def execute_model(self, output: SchedulerOutput) -> None:
        """Run the model over the step's tokens. May return before the work is done."""

    def sample_tokens(self) -> Pending[ModelRunnerOutput]:
        """Sample from the logits of the step that `execute_model` began."""

    def close(self) -> None:
        """Let the steps that have begun end, and release threads. May be called again."""


class Extension:
    """A feature's worker half. It acts at five fixed points of a step and keeps its own state by row.

    Override the points that the feature needs. With steps in flight, the results of a step have been taken in
    (`after_sample`) when the next step comes to `before_sample`, but perhaps not yet at `before_forward`.
    """

    def admit(self, request: NewRequestData) -> None:
        """A request takes `request.row`: forget what was kept for that row."""

    def before_forward(self, output: SchedulerOutput, batch: Batch) -> None:
        """The step's input is laid out and nothing has run: give the model inputs, in `batch.inputs`."""

    def after_forward(self, batch: Batch, hidden: Any) -> None:
        """`hidden` is the backend's handle on the hidden states [T, hidden], valid in this step."""

    def before_sample(self, batch: Batch, adjustments: LogitsAdjustments) -> None:
        """Restrict and bias what may be sampled from each row of logits."""

    def after_sample(self, batch: Batch, sampled: SamplerOutput, output: ModelRunnerOutput) -> None:
        """Tokens are sampled: take them into the feature's state, and put its results into `output`."""


class RequestHandler:
    """A feature's front-end half: checks what a request asks of the feature, and translates to and fro.

    Override what the feature needs.
    """

    def prepare(self, params: SamplingParams, prompt_token_ids: Sequence[int]) -> Any:
        """Check a request. Returns plain data for the feature's other halves (`feature_data`); None =
        nothing.

        Raises RequestError, naming the field.
        """

    def make_result(self, result: Any, params: SamplingParams) -> Any:
        """The user's form of what the worker half sent (`ModelRunnerOutput.add_result`) for a request."""
        return result
