"""Keeping the texts of control tokens that a user typed apart from the ones a chat template writes.

After rendering, both look the same. So before it, the first character of every such text in the request is
replaced by a stand-in, a character that occurs nowhere in the request or the template. What still reads as a
control token in the rendered prompt was written by the template; the rest gets its characters back and is
tokenized as plain text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from octavo.errors import RequestError
from octavo.frontend.tokenizers.special_tokens import SpecialTokenFinder

# Private use and unassigned characters first, for no template can mean anything by them.
_CANDIDATES = range(0x10FFFD, 0xFFFF, -1)


class StandIns:
    """Replaces, in any nest of lists and objects, what could be read as (the start of) a control token.

    A text that breaks off inside a control token counts, so that two texts rendered side by side cannot make
    one. Not covered is a template that itself writes the first half of a control token right before a text.
    """

    def __init__(self, value: Any, template: str, special_tokens: SpecialTokenFinder) -> None:
        self._special_tokens = special_tokens
        texts = list(texts_in(value))
        replaced = sorted({text[start] for text in texts for start in special_tokens.find_starts(text)})
        unused = unused_characters((template, *texts)) if replaced else iter(())
        self._stand_in = {character: next(unused) for character in replaced}
        self._original = str.maketrans(
            {stand_in: character for character, stand_in in self._stand_in.items()}
        )

    def __bool__(self) -> bool:
        """Whether anything has to be replaced at all."""
        return bool(self._stand_in)

    def replace(self, value: Any) -> Any:
        """A copy of `value` with stand-ins in all its texts."""
        match value:
            case str():
                return self._replace_in(value)
            case dict():
                return {self.replace(key): self.replace(item) for key, item in value.items()}
            case list() | tuple():
                return [self.replace(item) for item in value]
        return value

    def restore(self, text: str) -> str:
        """`text` with the original characters in place of the stand-ins."""
        return text.translate(self._original)

    def _replace_in(self, text: str) -> str:
        pieces: list[str] = []
        end = 0
        for start in self._special_tokens.find_starts(text):
            pieces += text[end:start], self._stand_in[text[start]]
            end = start + 1
        return "".join((*pieces, text[end:]))


def unused_characters(texts: Iterable[str]) -> Iterator[str]:
    """Characters that occur in none of `texts`. Raises RequestError where there is none left."""
    used = set[str]().union(*texts)
    yield from (character for character in map(chr, _CANDIDATES) if character not in used)
    raise RequestError(
        "The request holds every character of the supplementary planes of Unicode.", param="messages"
    )


def texts_in(value: Any) -> Iterator[str]:
    """Every text in a nest of lists and objects, keys included."""
    match value:
        case str():
            yield value
        case dict():
            for key, item in value.items():
                yield from texts_in(key)
                yield from texts_in(item)
        case list() | tuple():
            for item in value:
                yield from texts_in(item)
