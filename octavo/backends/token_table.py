"""`TokenTable`: the tokens of every row, for backends that compute in the host's memory."""

from __future__ import annotations

import numpy as np

from octavo.sampling.acceptance import count_gained
from octavo.types.batch import Batch
from octavo.types.sampling import SamplerOutput


class TokenTable:
    """Token ids by row and position: known tokens, drafts after them, and sampled tokens."""

    def __init__(self, num_rows: int, max_model_len: int) -> None:
        # [rows, max_model_len] int32, zeroed by the system on first touch: memory follows use.
        self._token_ids = np.zeros((num_rows, max_model_len), np.int32)

    def write(self, row: int, start: int, token_ids: list[int]) -> None:
        """Write `token_ids` at the positions of `row` from `start` on."""
        self._token_ids[row, start : start + len(token_ids)] = token_ids

    def gather(self, batch: Batch) -> np.ndarray:
        """The step's tokens: [T] int32."""
        token_ids: np.ndarray = self._token_ids[batch.token_rows, batch.positions]
        return token_ids

    def take_in(self, batch: Batch, sampled: SamplerOutput) -> SamplerOutput:
        """Write the sampled tokens at their positions. Returns `sampled` with the number of tokens that each
        request gains.

        If no token could be sampled, an invalid id is written. That request ends, and its row is not read
        again before another request is admitted to it. Tokens sampled after a wrong draft are written too,
        and the next step overwrites them.
        """
        rows, positions = batch.logits_rows, batch.logits_positions
        num_gained = None
        if batch.draft_token_ids:
            guessed = self._token_ids[rows, positions]
            num_gained = count_gained(sampled.sampled_token_ids, guessed, batch.logits_start_loc)
        self._token_ids[rows, positions] = sampled.sampled_token_ids
        return SamplerOutput(sampled.sampled_token_ids, sampled.logprobs, num_gained)
