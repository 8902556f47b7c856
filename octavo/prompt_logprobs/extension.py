"""The worker half: gathers logprobs from the hidden states of a prompt, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.backends.backend import Backend
from octavo.prompt_logprobs import NAME
from octavo.types.batch import Batch
from octavo.types.params import ALL_LOGPROBS
from octavo.types.protocols import Extension
from octavo.types.sampling import SamplerOutput, TokenLogprobs
from octavo.types.steps import ModelRunnerOutput, NewRequestData

# Rows of logits that are computed at once. Bounds their memory, however long the chunk is.
ROWS_AT_ONCE = 64


@dataclass(slots=True)
class _Prompt:
    """A prompt that needs logprobs, and those gathered so far."""

    token_ids: np.ndarray  # [num_prompt_tokens] int64
    num_logprobs: int
    # Of tokens 1, 2, …: token 0 has no logprob, since no token precedes it.
    gathered: list[TokenLogprobs] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return len(self.gathered) == len(self.token_ids) - 1


class PromptLogprobsExtension(Extension):
    """Gathers each prompt's logprobs and delivers all of them with the first generated token."""

    def __init__(self, backend: Backend, vocab_size: int) -> None:
        self.backend = backend
        self.vocab_size = vocab_size
        self.prompts: dict[int, _Prompt] = {}  # by row

    def admit(self, request: NewRequestData) -> None:
        """Start at the beginning of the prompt, unless the request has generated tokens before a preemption:
        its logprobs are then delivered already.
        """
        self.prompts.pop(request.row, None)
        count = request.sampling_params.prompt_logprobs
        if count is None or len(request.token_ids) > request.num_prompt_tokens:
            return
        assert request.num_computed_tokens == 0, "prompt logprobs need every prompt token computed"
        token_ids = np.array(request.token_ids, np.int64)
        self.prompts[request.row] = _Prompt(token_ids, self.vocab_size if count == ALL_LOGPROBS else count)

    def after_forward(self, batch: Batch, hidden: Any) -> None:
        """Gather logprobs from the chunk of each such prompt that this step has computed."""
        if not self.prompts:
            return
        for index, row in enumerate(batch.rows.tolist()):
            prompt = self.prompts.get(row)
            if prompt is None or prompt.complete:
                continue
            start, stop = batch.query_start_loc[index : index + 2].tolist()
            # The token at position p is predicted by the hidden state at p - 1; the last one predicts no
            # prompt token.
            targets = prompt.token_ids[len(prompt.gathered) + 1 :][: stop - start]
            for first in range(0, len(targets), ROWS_AT_ONCE):
                wanted = targets[first : first + ROWS_AT_ONCE]
                indices = np.arange(start + first, start + first + len(wanted))
                logits = self.backend.compute_logits(hidden, indices)
                prompt.gathered += self.backend.gather_logprobs(logits, wanted, prompt.num_logprobs)

    def after_sample(self, batch: Batch, sampled: SamplerOutput, output: ModelRunnerOutput) -> None:
        """Deliver the logprobs with the first generated token."""
        if not self.prompts:
            return
        for index in batch.sampled_index.tolist():
            prompt = self.prompts.pop(int(batch.rows[index]), None)
            if prompt is not None:
                output.add_result(NAME, batch.req_ids[index], prompt.gathered)
