"""Stand-ins distinguish control tokens that a request's texts spell from those that a template writes.

After rendering, both look the same. So before rendering, each character of the request that could start or
end a control token is replaced by a stand-in: a character that occurs nowhere in the request or the template.
A control token in the rendered prompt then starts and ends with characters of the template. In all other text
the original characters are restored, and it is tokenized as plain text.

Two cases are not covered. A template that changes a text, for example by `replace` or `lower`, may turn it
into a control token. And if a template writes both ends of a control token around a text, such as
'<|' + role + '|>', the result is the control token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from octavo.errors import RequestError
from octavo.frontend.tokenizer import Tokenizer
from octavo.frontend.tokenizers.special_tokens import SpecialTokenFinder

# Private-use and unassigned characters come first, since they have no meaning to a template.
_CANDIDATES = range(0x10FFFD, 0xFFFF, -1)


class ControlTokenEdges:
    """Finds the first and last characters of control tokens in a text, also of control tokens that are
    complete only together with other text before or after it.
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
    """Replaces the first and last characters of control tokens in all texts of nested lists and objects.

    No stand-in occurs in `template`.
    """

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
    """Characters that occur in none of `texts`. Raises RequestError when there are no more."""
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
