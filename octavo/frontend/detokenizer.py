"""`IncrementalDetokenizer` turns output tokens into text as they arrive, and finds stop strings in it.

One incremental UTF-8 decoder decodes the bytes of the tokens. So the text does not depend on how the tokens
are divided over steps, and no token is decoded twice. Stop strings are searched in the new text and in as
many characters before it as a stop string may span. So the cost of a step does not grow with the length of
the output, with one exception: CUMULATIVE outputs join the whole text in every step.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from octavo.frontend.tokenizer import Tokenizer
from octavo.types.params import SamplingParams


class IncrementalDetokenizer:
    """The text of one output. It stays empty if `tokenizer` is None or `params.detokenize` is false.

    It reads these fields of `params`: detokenize, skip_special_tokens, stop, include_stop_str_in_output and
    min_tokens (a stop string counts only if a token after the first min_tokens completes it).
    `prompt_token_ids` have one use: the space that SentencePiece puts at the start of a text is dropped only
    if the prompt has no text.

    `num_output_tokens` counts the tokens so far, up to and including the one that completed a stop string.
    Later tokens of the same step are no part of the output.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        params: SamplingParams,
        prompt_token_ids: Sequence[int] | None = None,
    ) -> None:
        self.num_output_tokens = 0
        self._tokenizer = tokenizer if params.detokenize else None
        self._params = params
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._drop_space = (
            self._tokenizer is not None
            and self._tokenizer.drops_first_space
            and prompt_token_ids is not None
            and all(map(self._is_skipped, prompt_token_ids))
        )
        # The number of characters before new text in which a stop string may begin. These characters may yet
        # be cut, so they are held back.
        self._reach = max(map(len, params.stop), default=1) - 1
        self._hold_back = 0 if params.include_stop_str_in_output else self._reach
        self._tail = ""  # the last `_reach` characters
        self._sent: list[str] = []
        self._unsent: list[str] = []

    @property
    def output_text(self) -> str:
        """All text so far, including text that is held back."""
        return "".join((*self._sent, *self._unsent))

    def update(self, new_token_ids: Sequence[int], finish_on_stop_token: bool) -> str | None:
        """Add the tokens of a step. Returns the stop string that they complete, or None.

        The text then ends before the stop string, or after it with include_stop_str_in_output. If the tokens
        complete several stop strings, the one that ends first counts, and of those that end at the same
        character the first in the list. `finish_on_stop_token`: the last token ended the request (EOS or one
        of stop_token_ids). That token adds no text, except with include_stop_str_in_output.
        """
        hidden = finish_on_stop_token and not self._params.include_stop_str_in_output
        for position, token_id in enumerate(new_token_ids, start=1):
            self.num_output_tokens += 1
            if hidden and position == len(new_token_ids):
                break
            text = self._decode(token_id)
            if text and (stop := self._append(text)) is not None:
                return stop
        return None

    def get_next_output_text(self, finished: bool, delta: bool) -> str:
        """The text to show now: with `delta` only the text since the last call, else all of it.

        Until `finished`, the text leaves out its last characters if they may belong to a stop string, and the
        bytes of an incomplete character.
        """
        if finished:
            self._unsent.append(self._decoder.decode(b"", final=True))
        text = "".join(self._unsent)
        shown = len(text) if finished else max(0, len(text) - self._hold_back)
        self._unsent = [text[shown:]]
        self._sent.append(text[:shown])
        if delta:
            return text[:shown]
        self._sent = ["".join(self._sent)]
        return self._sent[0]

    def _is_skipped(self, token_id: int) -> bool:
        return self._tokenizer is None or (
            self._params.skip_special_tokens and self._tokenizer.is_special(token_id)
        )

    def _decode(self, token_id: int) -> str:
        """The characters that `token_id` completes."""
        if self._tokenizer is None or self._is_skipped(token_id):
            return ""
        text = self._decoder.decode(self._tokenizer.token_bytes(token_id))
        if text and self._drop_space:
            self._drop_space = False
            return text.removeprefix(" ")
        return text

    def _append(self, text: str) -> str | None:
        """Add `text`. If it completes a stop string, cut the text there and return the stop string."""
        window = self._tail + text
        found = self._find_stop(window) if self.num_output_tokens > self._params.min_tokens else None
        self._unsent.append(text)
        if self._reach:
            self._tail = window[-self._reach :]
        if found is None:
            return None
        start, stop = found
        end = start + len(stop) if self._params.include_stop_str_in_output else start
        unsent = "".join(self._unsent)
        self._unsent = [unsent[: len(unsent) - (len(window) - end)]]
        self._decoder.reset()
        return stop

    def _find_stop(self, window: str) -> tuple[int, str] | None:
        """(start in `window`, stop string) of the stop string that ends first, after the end of `_tail`."""
        first: tuple[int, str] | None = None
        for stop in self._params.stop:
            start = window.find(stop, max(0, len(self._tail) - len(stop) + 1))
            if start >= 0 and (first is None or start + len(stop) < first[0] + len(first[1])):
                first = start, stop
        return first
