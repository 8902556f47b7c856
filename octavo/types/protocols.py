"""The interfaces between core, executor and worker, and of a feature's worker half and front-end half.

The core half of a feature, `Constraint`, is in `octavo.scheduler.constraint`, because its methods take a
`Request`, which only the core has.
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
        """Wait for the result and return it. Raises the error of the computation, if it failed."""


@dataclass(frozen=True, slots=True)
class Done(Generic[Value]):
    """A result that is available at once. Implements `Pending`."""

    value: Value

    def result(self) -> Value:
        """Return the result."""
        return self.value


class Executor(Protocol):
    """Runs steps on one worker or many, in the order of the calls.

    For each step the core calls `execute_model` and then `sample_tokens`. It may make these calls for the
    next step before this step has run. Neither call raises the errors of a step: `result` raises them.
    """

    def execute_model(self, output: SchedulerOutput) -> None:
        """Run the model over the step's tokens. May return before the work is done."""

    def sample_tokens(self) -> Pending[ModelRunnerOutput]:
        """Sample from the logits of the step that `execute_model` began."""

    def close(self) -> None:
        """Wait for the steps that have begun, and release threads. May be called again."""


class Extension:
    """A feature's worker half: hooks at five fixed points of a step, and the feature's state by row.

    Override the hooks that the feature needs. With several steps in flight, `after_sample` of a step runs
    before `before_sample` of the next, but possibly after `before_forward` of the next.
    """

    def admit(self, request: NewRequestData) -> None:
        """`request` is admitted to `request.row`. Replace the state of that row."""

    def before_forward(self, output: SchedulerOutput, batch: Batch) -> None:
        """The batch is built, and the model has not run. Put inputs for the model into `batch.inputs`."""

    def after_forward(self, batch: Batch, hidden: Any) -> None:
        """The model has run.

        `hidden` is the backend's handle on the hidden states [T, hidden]. It is valid in this step only.
        """

    def before_sample(self, batch: Batch, adjustments: LogitsAdjustments) -> None:
        """Restrict, bias or penalize the tokens that may be sampled from each row of logits."""

    def after_sample(self, batch: Batch, sampled: SamplerOutput, output: ModelRunnerOutput) -> None:
        """Tokens are sampled. Update the feature's state, and put the feature's results into `output`."""


class RequestHandler:
    """A feature's front-end half: checks requests and converts results. Override the methods it needs."""

    def prepare(self, params: SamplingParams, prompt_token_ids: Sequence[int]) -> Any:
        """Check a request. Return plain data for the feature's other halves (`feature_data`), or None.

        Raises RequestError, naming the field.
        """

    def make_result(self, result: Any, params: SamplingParams) -> Any:
        """Convert a result of the worker half (`ModelRunnerOutput.add_result`) to the form that users get."""
        return result
