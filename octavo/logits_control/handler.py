"""The front-end half: finds the tokens that spell forbidden words, and the tokens that end a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.errors import RequestError
from octavo.frontend.tokenizer import Tokenizer
from octavo.types.params import SamplingParams
from octavo.types.protocols import RequestHandler


class LogitsControlHandler(RequestHandler):
    """Prepares the data of the worker half that needs a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def prepare(self, params: SamplingParams, prompt_token_ids: Sequence[int]) -> Any:
        """Return a dict with `bad_words`, the token sequences that spell the words, and `end_token_ids`, the
        tokens that end the text. Each key is absent if the request does not need it; None = no key.
        """
        data: dict[str, list[Any]] = {}
        if params.bad_words:
            data["bad_words"] = [ids for word in params.bad_words for ids in self._spellings(word)]
            self._check_choice(params, data["bad_words"])
        if params.min_tokens:
            ends = set(params.stop_token_ids)
            if not params.ignore_eos:
                ends |= set(self._tokenizer.eos_token_ids)
            data["end_token_ids"] = sorted(ends)
        return data or None

    def _spellings(self, word: str) -> list[list[int]]:
        """Return the token ids of a word at the beginning of a text, and after a space."""
        spellings = [
            self._tokenizer.encode(text, add_special_tokens=False) for text in (word, f" {word.lstrip()}")
        ]
        return [list(ids) for ids in dict.fromkeys(map(tuple, spellings)) if ids]

    def _check_choice(self, params: SamplingParams, bad_words: list[list[int]]) -> None:
        if params.allowed_token_ids is None:
            return
        forbidden = {ids[0] for ids in bad_words if len(ids) == 1}
        if forbidden.issuperset(params.allowed_token_ids):
            raise RequestError(
                "bad_words forbids every token in allowed_token_ids; leave at least one to choose",
                "bad_words",
            )
