"""`ModelRunner`: the worker's part of a step, a fixed sequence with five hooks for features.

It names no feature. A feature's `Extension` keeps the feature's state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from octavo.backends.backend import Backend
from octavo.types.adjustments import LogitsAdjustments
from octavo.types.batch import Batch
from octavo.types.protocols import Extension, Pending
from octavo.types.sampling import SamplerOutput
from octavo.types.steps import ModelRunnerOutput, SchedulerOutput
from octavo.worker.input_batch import InputBatch


class ExecuteModelState(NamedTuple):
    """A step between `execute_model` and `sample_tokens`."""

    batch: Batch
    hidden: Any  # the backend's handle on [T, hidden]
    logits: Any  # the backend's handle on [L, vocab]


class ModelRunner:
    """Runs steps on one backend. Calls of `execute_model` and `sample_tokens` must alternate."""

    def __init__(
        self, backend: Backend, input_batch: InputBatch, extensions: Sequence[Extension] = ()
    ) -> None:
        self.backend = backend
        self.input_batch = input_batch
        self.extensions = extensions
        self._state: ExecuteModelState | None = None
        self._last = PendingOutput(_no_output)  # output of the last step

    def execute_model(self, output: SchedulerOutput) -> None:
        """Run the model over the step's tokens and keep the logits of the requests that sample."""
        self._state = None  # an interrupt may have left a step unfinished
        self._update(output)
        if not output.total_num_scheduled_tokens:
            return
        batch = self.input_batch.build(output)
        for extension in self.extensions:
            extension.before_forward(output, batch)
        hidden = self.backend.forward(batch)
        for extension in self.extensions:
            extension.after_forward(batch, hidden)
        logits = self.backend.compute_logits(hidden, batch.logits_indices)
        self._state = ExecuteModelState(batch, hidden, logits)

    def sample_tokens(self) -> Pending[ModelRunnerOutput]:
        """Sample from the logits of `execute_model`. May return before the backend is done."""
        state, self._state = self._state, None
        if state is None:
            return PendingOutput(_no_output)
        self._last.settle()  # features need the tokens that the step before has sampled
        batch = state.batch
        adjustments = LogitsAdjustments(batch.num_logits, self.input_batch.vocab_size)
        for extension in self.extensions:
            extension.before_sample(batch, adjustments)
        metadata = adjustments.apply_to(self.input_batch.get_sampling_metadata(batch))
        sampled = self.backend.sample(state.logits, batch, metadata)
        self.input_batch.gain(batch)
        self._last = PendingOutput(lambda: self._take_in(batch, sampled.result()))
        return self._last

    def _update(self, output: SchedulerOutput) -> None:
        """Prepare rows, tokens and blocks for the step."""
        self.input_batch.update(output)
        for request in output.scheduled_new_reqs:
            self.backend.write_tokens(request.row, 0, request.token_ids)
            for extension in self.extensions:
                extension.admit(request)
        for req_id, drafts in output.scheduled_spec_decode_tokens.items():
            row = self.input_batch.row_of[req_id]
            self.backend.write_tokens(row, int(self.input_batch.num_tokens[row]), drafts)
        if output.new_block_ids_to_zero:
            self.backend.zero_blocks(np.array(output.new_block_ids_to_zero, np.int32))
        if output.kv_cache_block_copies:
            sources, destinations = zip(*output.kv_cache_block_copies, strict=True)
            self.backend.copy_blocks(np.array(sources, np.int32), np.array(destinations, np.int32))

    def _take_in(self, batch: Batch, sampled: SamplerOutput) -> ModelRunnerOutput:
        """Return the sampled tokens and logprobs by request, and update rows and features."""
        self.input_batch.settle(batch, sampled.num_gained)
        output = ModelRunnerOutput(sampled_token_ids={}, logprobs={})
        token_ids = sampled.sampled_token_ids.tolist()
        starts = batch.logits_start_loc.tolist()
        gained = [1] * len(batch.sampled_index)
        if sampled.num_gained is not None:
            gained = sampled.num_gained.tolist()
        for index, start, count in zip(batch.sampled_index.tolist(), starts[:-1], gained, strict=True):
            req_id = batch.req_ids[index]
            output.sampled_token_ids[req_id] = token_ids[start : start + count]
            if sampled.logprobs[start] is not None:
                output.logprobs[req_id] = [each for each in sampled.logprobs[start : start + count] if each]
        for extension in self.extensions:
            extension.after_sample(batch, sampled, output)
        return output


class PendingOutput:
    """The output of a step, made when it is first needed. Any thread may call its methods."""

    def __init__(self, take_in: Callable[[], ModelRunnerOutput]) -> None:
        self._take_in = take_in
        self._output: Future[ModelRunnerOutput] = Future()
        self._lock = threading.Lock()

    def settle(self) -> None:
        """Wait for the output. An error is kept, and `result` raises it."""
        with self._lock:
            if self._output.done():
                return
            try:
                self._output.set_result(self._take_in())
            except BaseException as error:  # noqa: BLE001 - raised by `result`, in the step it belongs to
                self._output.set_exception(error)

    def result(self) -> ModelRunnerOutput:
        """Wait for the output and return it. Raises the error of the step, if it failed."""
        self.settle()
        return self._output.result()


def _no_output() -> ModelRunnerOutput:
    return ModelRunnerOutput(sampled_token_ids={}, logprobs={})
