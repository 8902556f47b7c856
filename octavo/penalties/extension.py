"""The worker half: counts the tokens of each row whose request asks for penalties."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.types.adjustments import LogitsAdjustments
from octavo.types.batch import Batch
from octavo.types.protocols import Extension
from octavo.types.sampling import Penalties, SamplerOutput
from octavo.types.steps import ModelRunnerOutput, NewRequestData


class TokenCounts:
    """The distinct tokens of several rows, and how often each is in the row's output.

    The memory that a row takes grows with its distinct tokens. Adding a token takes constant time.
    """

    def __init__(self, num_rows: int, max_model_len: int, vocab_size: int) -> None:
        # The system zeroes a page on first touch, so only the parts in use take memory.
        # `seen` is in the order of first use.
        self.seen = np.zeros((num_rows, min(max_model_len, vocab_size)), np.int32)
        self.num_seen = np.zeros(num_rows, np.int64)
        self.counts = np.zeros((num_rows, vocab_size), np.int32)  # 0 = not seen; 1 + times in the output

    def clear(self, row: int) -> None:
        """Forget the row's tokens."""
        self.counts[row, self.seen[row, : self.num_seen[row]]] = 0
        self.num_seen[row] = 0

    def add_prompt(self, row: int, token_ids: Sequence[int]) -> None:
        """Add the tokens of a prompt to a cleared row: they are seen, but not in the output."""
        distinct = np.unique(np.asarray(token_ids, np.int32))
        self.seen[row, : len(distinct)] = distinct
        self.num_seen[row] = len(distinct)
        self.counts[row, distinct] = 1

    def add_output(self, row: int, token_ids: Sequence[int]) -> None:
        """Add tokens to the row's output."""
        counts = self.counts[row]
        for token_id in token_ids:
            if not counts[token_id]:
                self.seen[row, self.num_seen[row]] = token_id
                self.num_seen[row] += 1
                counts[token_id] = 1
            counts[token_id] += 1

    def copy(self, source: int, target: int) -> None:
        """Make row `target` hold what row `source` holds."""
        self.clear(target)
        seen = self.seen[source, : self.num_seen[source]]
        self.seen[target, : len(seen)] = seen
        self.num_seen[target] = len(seen)
        self.counts[target, seen] = self.counts[source, seen]


class PenaltiesExtension(Extension):
    """Gives each row's penalties and token counts to the sampler."""

    def __init__(self, num_rows: int, max_model_len: int, vocab_size: int) -> None:
        self._num_rows = num_rows
        self._shape = (max_model_len, vocab_size)
        self._is_active = np.zeros(num_rows, bool)
        self._repetition = np.ones(num_rows, np.float32)
        self._frequency = np.zeros(num_rows, np.float32)
        self._presence = np.zeros(num_rows, np.float32)
        self._tokens: TokenCounts | None = None  # made for the first request that asks for penalties

    def admit(self, request: NewRequestData) -> None:
        row, params = request.row, request.sampling_params
        if self._is_active[row]:
            self._counts.clear(row)
        self._repetition[row] = params.repetition_penalty
        self._frequency[row] = params.frequency_penalty
        self._presence[row] = params.presence_penalty
        self._is_active[row] = (
            params.repetition_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0
        )
        if self._is_active[row]:
            self._counts.add_prompt(row, request.token_ids[: request.num_prompt_tokens])
            self._counts.add_output(row, request.token_ids[request.num_prompt_tokens :])

    def before_sample(self, batch: Batch, adjustments: LogitsAdjustments) -> None:
        rows = batch.logits_rows
        if not self._is_active[rows].any():
            return
        counted = self._count_drafts(batch) if batch.draft_token_ids else rows
        counts = self._counts
        adjustments.penalize(
            Penalties(
                repetition=self._repetition[rows],
                frequency=self._frequency[rows],
                presence=self._presence[rows],
                rows=counted,
                seen=counts.seen,
                num_seen=counts.num_seen,
                counts=counts.counts,
            )
        )

    def after_sample(self, batch: Batch, sampled: SamplerOutput, output: ModelRunnerOutput) -> None:
        rows = batch.rows[batch.sampled_index]
        for index in np.flatnonzero(self._is_active[rows]).tolist():
            start = int(batch.logits_start_loc[index])
            gained = 1 if sampled.num_gained is None else int(sampled.num_gained[index])
            token_ids = sampled.sampled_token_ids[start : start + gained]
            self._counts.add_output(int(rows[index]), token_ids[token_ids >= 0].tolist())

    @property
    def _counts(self) -> TokenCounts:
        if self._tokens is None:
            self._tokens = TokenCounts(self._num_rows, *self._shape)
        return self._tokens

    def _count_drafts(self, batch: Batch) -> np.ndarray:
        """Return the row of the counts for each row of logits.

        A row of logits that follows drafts has counts of its own, in which those drafts count as output.
        """
        counted = batch.logits_rows.copy()
        spare = self._num_rows
        for index, request in enumerate(batch.sampled_index.tolist()):
            drafts = batch.draft_token_ids.get(request)
            row = int(batch.rows[request])
            if drafts is None or not self._is_active[row]:
                continue
            for number in range(1, len(drafts) + 1):
                self._reserve(spare + 1)
                self._counts.copy(row, spare)
                self._counts.add_output(spare, drafts[:number])
                counted[batch.logits_start_loc[index] + number] = spare
                spare += 1
        return counted

    def _reserve(self, num_rows: int) -> None:
        """Make counts for at least `num_rows` rows. Those past the worker's rows are for drafts."""
        old = self._counts
        if num_rows <= len(old.num_seen):
            return
        self._tokens = TokenCounts(2 * num_rows, *self._shape)
        for name in ("seen", "num_seen", "counts"):
            getattr(self._tokens, name)[: len(old.num_seen)] = getattr(old, name)
