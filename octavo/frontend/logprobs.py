"""Adds the text of tokens to the core's log-probabilities, which have only token ids."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from octavo.frontend.tokenizer import Tokenizer
from octavo.types.outputs import Logprob, PositionLogprobs
from octavo.types.sampling import TokenLogprobs


class TokenTexts:
    """Adds tokens' texts to the log-probabilities of consecutive positions of one text. Mutable."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        """Without a `tokenizer` every text is empty."""
        self._tokenizer = tokenizer
        self._pending = b""  # the bytes at the end of the text that do not complete a character yet

    def add(self, position: TokenLogprobs) -> PositionLogprobs:
        """The log-probabilities at the next position. The first token of `position` continues the text."""
        found = _with_text(position, self._tokenizer, self._pending)
        self._pending = _pending_after(self._pending, position.token_ids[0], self._tokenizer)
        return found


class LogprobsProcessor:
    """Collects the log-probabilities of one answer."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.logprobs: list[PositionLogprobs] = []
        self.cumulative_logprob = 0.0
        self._texts = TokenTexts(tokenizer)

    def update(self, positions: Sequence[TokenLogprobs]) -> None:
        """Add the log-probabilities of new tokens."""
        for position in positions:
            self.logprobs.append(self._texts.add(position))
            self.cumulative_logprob += position.logprobs[0]


def _with_text(position: TokenLogprobs, tokenizer: Tokenizer | None, pending: bytes) -> PositionLogprobs:
    # The chosen token comes first, with its own rank. The most likely tokens follow, with ranks from 1. If
    # the chosen token is one of these, its first entry is kept.
    ranks = [position.rank, *range(1, len(position.token_ids))]
    found: dict[int, Logprob] = {}
    for token_id, logprob, rank in zip(position.token_ids, position.logprobs, ranks, strict=True):
        if token_id not in found:
            found[token_id] = Logprob(logprob, rank, _text_of(token_id, tokenizer, pending))
    return found


def _text_of(token_id: int, tokenizer: Tokenizer | None, pending: bytes) -> str:
    """The text that `token_id` adds after the bytes `pending`; "" if it completes no character."""
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
