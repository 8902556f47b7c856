"""`ModelRunner`: one worker's half of a step, a fixed sequence with four points where features act.

No feature's name appears here: what a feature keeps, its `Extension` keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from octavo.backends.backend import Backend
from octavo.types.batch import Batch
from octavo.types.protocols import Extension
from octavo.types.steps import ModelRunnerOutput, SchedulerOutput
from octavo.worker.input_batch import InputBatch


class ExecuteModelState(NamedTuple):
    """A step between its two halves."""

    batch: Batch
    hidden: Any  # the backend's handle on [T, hidden]
    logits: Any  # the backend's handle on [L, vocab]


class ModelRunner:
    """Runs steps on one backend. `execute_model` and `sample_tokens` are called strictly in turn."""

    def __init__(
        self, backend: Backend, input_batch: InputBatch, extensions: Sequence[Extension] = ()
    ) -> None:
        self.backend = backend
        self.input_batch = input_batch
        self.extensions = extensions
        self._state: ExecuteModelState | None = None

    def execute_model(self, output: SchedulerOutput) -> None:
        """Run the model over the step's tokens and keep the logits of the requests that sample."""
        self._state = None  # an interrupt may have left a step half done
        self.input_batch.update(output)
        for request in output.scheduled_new_reqs:
            for extension in self.extensions:
                extension.admit(request)
        if output.new_block_ids_to_zero:
            self.backend.zero_blocks(np.array(output.new_block_ids_to_zero, np.int32))
        if output.kv_cache_block_copies:
            sources, destinations = zip(*output.kv_cache_block_copies, strict=True)
            self.backend.copy_blocks(np.array(sources, np.int32), np.array(destinations, np.int32))
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

    def sample_tokens(self) -> ModelRunnerOutput:
        """Sample from the logits of `execute_model`, write the tokens into their rows, report them."""
        output = ModelRunnerOutput(sampled_token_ids={}, logprobs={}, prompt_logprobs={})
        state, self._state = self._state, None
        if state is None:
            return output
        batch = state.batch
        sampled = self.backend.sample(state.logits, self.input_batch.get_sampling_metadata(batch))
        self.input_batch.append_sampled(batch, sampled)
        for index, token_id, logprobs in zip(
            batch.sampled_index.tolist(), sampled.sampled_token_ids.tolist(), sampled.logprobs, strict=True
        ):
            output.sampled_token_ids[batch.req_ids[index]] = [token_id]
            if logprobs is not None:
                output.logprobs[batch.req_ids[index]] = [logprobs]
        for extension in self.extensions:
            extension.after_sample(batch, sampled, output)
        return output
