"""Stand-ins: keep the control tokens that a request's texts spell apart from those that a template writes.

After rendering, both look the same. So before rendering, every character of the request with which a control
token could start or end is replaced by a stand-in, a character that occurs nowhere in the request or the
template. A control token in the rendered prompt then starts and ends with characters of the template. The
other text gets its characters back and is tokenized as plain text.

Two cases are not covered. A template that changes the inside of a text, by `replace` or `lower`, may make a
control token of a text that was none. And a template that writes both ends of a control token around a text
gets the control token: '<|' + role + '|>'.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from octavo.errors import RequestError
from octavo.frontend.tokenizer import Tokenizer
from octavo.frontend.tokenizers.special_tokens import SpecialTokenFinder

# Private use and unassigned characters first, for no template can mean anything by them.
_CANDIDATES = range(0x10FFFD, 0xFFFF, -1)


class ControlTokenEdges:
    """Finds the characters of a text with which control tokens start and end, or could start or end if other
    text stood before or after it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        ids = filter(tokenizer.is_special, range(tokenizer.vocab_size))
        self._starts = tokenizer.special_tokens
        self._ends = SpecialTokenFinder({tokenizer.token_text(i)[::-1]: i for i in ids})

    def find(self, text: str) -> list[int]:
        """The positions of the first and last characters of control tokens, in ascending order."""
        starts = self._starts.find_starts(text)
        ends = (len(text) - 1 - position for position in self._ends.find_starts(text[::-1]))
        return sorted({*starts, *ends})


class StandIns:
    """Replaces the edges of control tokens in all texts of nested lists and objects, for `template`."""

    def __init__(self, value: Any, template: str, edges: ControlTokenEdges) -> None:
        self._edges = edges
        texts = list(texts_in(value))
        replaced = sorted({text[position] for text in texts for position in edges.find(text)})
        unused = unused_characters((template, *texts)) if replaced else iter(())
        self._stand_in = {character: next(unused) for character in replaced}
        self._original = str.maketrans(
            {stand_in: character for character, stand_in in self._stand_in.items()}
        )

    def __bool__(self) -> bool:
        """Whether any character has to be replaced."""
        return bool(self._stand_in)

    def replace(self, value: Any) -> Any:
        """A copy of `value` with stand-ins in all its texts."""
        match value:
            case str():
                return self._replace_in(value)
            case dict():
                return {self._replace_in(key): self.replace(item) for key, item in value.items()}
            case list():
                return [self.replace(item) for item in value]
        return value

    def restore(self, text: str) -> str:
        """`text` with the original characters in place of the stand-ins."""
        return text.translate(self._original)

    def _replace_in(self, text: str) -> str:
        characters = list(text)
        for position in self._edges.find(text):
            characters[position] = self._stand_in[text[position]]
        return "".join(characters)


def unused_characters(texts: Iterable[str]) -> Iterator[str]:
    """Characters that occur in none of `texts`. Raises RequestError where there is none left."""
    used = set[str]().union(*texts)
    yield from (character for character in map(chr, _CANDIDATES) if character not in used)
    raise RequestError("the request holds every character of the supplementary planes of Unicode", "messages")


def texts_in(value: Any) -> Iterator[str]:
    """Every text in nested lists and objects, keys included."""
    match value:
        case str():
            yield value
        case dict():
            yield from value
            yield from texts_in(list(value.values()))
        case list():
            for item in value:
                yield from texts_in(item)
