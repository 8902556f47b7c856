"""The worker half: restricts and biases the rows of logits whose requests ask for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.logits_control import NAME
from octavo.types.adjustments import LogitsAdjustments, make_mask
from octavo.types.batch import Batch
from octavo.types.protocols import Extension
from octavo.types.sampling import SamplerOutput
from octavo.types.steps import ModelRunnerOutput, NewRequestData


class LogitsControl:
    """The changes that one request asks for in its logits. Mutable: they depend on the request's output."""

    def __init__(self, request: NewRequestData, vocab_size: int) -> None:
        params = request.sampling_params
        data = request.feature_data.get(NAME) or {}
        self._allowed: np.ndarray | None = None
        if params.allowed_token_ids is not None:
            self._allowed = make_mask(list(params.allowed_token_ids), vocab_size)
        self._bias: tuple[np.ndarray, np.ndarray] | None = None
        if params.logit_bias:
            ids, values = list(params.logit_bias), list(params.logit_bias.values())
            self._bias = np.array(ids, np.int32), np.array(values, np.float32)
        self._end_token_ids: list[int] = data.get("end_token_ids", [])
        self._bad_words: list[list[int]] = data.get("bad_words", [])
        # Words of several tokens depend on the last tokens of the output.
        self._reach = max(map(len, self._bad_words), default=1) - 1
        self._min_tokens = params.min_tokens
        self._num_output_tokens = 0
        self._tail: list[int] = []
        self.add_output(request.token_ids[request.num_prompt_tokens :])

    @property
    def is_needed(self) -> bool:
        """Whether the request asks for any change."""
        return bool(
            self._bad_words or self._min_tokens or self._bias is not None or self._allowed is not None
        )

    def add_output(self, token_ids: Sequence[int]) -> None:
        """Add generated tokens to the output."""
        self._num_output_tokens += len(token_ids)
        if self._reach:
            self._tail = [*self._tail, *token_ids][-self._reach :]

    def adjust(self, row: int, drafts: Sequence[int], adjustments: LogitsAdjustments) -> None:
        """Adjust the logits of `row` for the token that follows the output so far and then `drafts`."""
        if self._allowed is not None:
            adjustments.allow_only(row, self._allowed)
        if self._bias is not None:
            adjustments.add_bias(row, *self._bias)
        if self._end_token_ids and self._num_output_tokens + len(drafts) < self._min_tokens:
            adjustments.forbid(row, self._end_token_ids)
        if self._bad_words:
            tail = [*self._tail, *drafts]
            forbidden = [ids[-1] for ids in self._bad_words if _ends_with(tail, ids[:-1])]
            if forbidden:
                adjustments.forbid(row, forbidden)


class LogitsControlExtension(Extension):
    """Keeps a `LogitsControl` for each row whose request needs one."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._controls: dict[int, LogitsControl] = {}  # by row

    def admit(self, request: NewRequestData) -> None:
        self._controls.pop(request.row, None)
        control = LogitsControl(request, self._vocab_size)
        if control.is_needed:
            self._controls[request.row] = control

    def before_sample(self, batch: Batch, adjustments: LogitsAdjustments) -> None:
        if not self._controls:
            return
        starts = batch.logits_start_loc.tolist()
        for index, request in enumerate(batch.sampled_index.tolist()):
            control = self._controls.get(int(batch.rows[request]))
            if control is None:
                continue
            drafts = batch.draft_token_ids.get(request, [])
            for row in range(starts[index], starts[index + 1]):
                control.adjust(row, drafts[: row - starts[index]], adjustments)

    def after_sample(self, batch: Batch, sampled: SamplerOutput, output: ModelRunnerOutput) -> None:
        if not self._controls:
            return
        for request in batch.sampled_index.tolist():
            control = self._controls.get(int(batch.rows[request]))
            if control is not None:
                control.add_output(output.sampled_token_ids[batch.req_ids[request]])


def _ends_with(tail: list[int], token_ids: list[int]) -> bool:
    return not token_ids or tail[-len(token_ids) :] == token_ids
