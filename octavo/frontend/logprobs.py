"""`LogprobsProcessor`: from the core's log-probabilities by token id to the user's, with text."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from octavo.frontend.tokenizer import Tokenizer
from octavo.types.outputs import Logprob, PositionLogprobs
from octavo.types.sampling import TokenLogprobs


class LogprobsProcessor:
    """Collects the logprobs of one answer, and those of its prompt."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokenizer = tokenizer
        self.logprobs: list[PositionLogprobs] = []
        self.cumulative_logprob = 0.0
        self.prompt_logprobs: list[PositionLogprobs | None] | None = None
        self._pending = b""  # of the text so far: the beginning of a character that is not complete

    def update(self, positions: Sequence[TokenLogprobs]) -> None:
        """Take in the logprobs of new tokens."""
        for position in positions:
            self.logprobs.append(_with_text(position, self.tokenizer, self._pending))
            self.cumulative_logprob += position.logprobs[0]
            self._pending = _pending_after(self._pending, position.token_ids[0], self.tokenizer)

    def update_prompt(self, positions: Sequence[TokenLogprobs]) -> None:
        """Take in the logprobs of the whole prompt but its first token, which nothing precedes."""
        self.prompt_logprobs = [None]
        pending = b""
        for position in positions:
            self.prompt_logprobs.append(_with_text(position, self.tokenizer, pending))
            pending = _pending_after(pending, position.token_ids[0], self.tokenizer)


def _with_text(position: TokenLogprobs, tokenizer: Tokenizer | None, pending: bytes) -> PositionLogprobs:
    # The chosen token may also be among the most likely ones: it keeps its own rank, theirs count from 1.
    ranks = [position.rank, *range(1, len(position.token_ids))]
    found: dict[int, Logprob] = {}
    for token_id, logprob, rank in zip(position.token_ids, position.logprobs, ranks, strict=True):
        if token_id not in found:
            found[token_id] = Logprob(logprob, rank, _text_of(token_id, tokenizer, pending))
    return found


def _text_of(token_id: int, tokenizer: Tokenizer | None, pending: bytes) -> str:
    """What `token_id` adds to a text that ends in the bytes `pending`; "" when it completes no character."""
    if tokenizer is None:
        return ""
    if tokenizer.is_special(token_id):
        return tokenizer.token_text(token_id)
    return codecs.utf_8_decode(pending + tokenizer.token_bytes(token_id), "replace", False)[0]


def _pending_after(pending: bytes, token_id: int, tokenizer: Tokenizer | None) -> bytes:
    if tokenizer is None or tokenizer.is_special(token_id):
        return b""
    data = pending + tokenizer.token_bytes(token_id)
    return data[codecs.utf_8_decode(data, "replace", False)[1] :]
