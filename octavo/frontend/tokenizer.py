"""Text to token ids and back, the same for every source of a tokenizer.

A `tokenizers.Tokenizer` encodes. This module decodes, from the bytes that each token stands for, so that an
output decoded as a whole and the same output decoded as it arrives have the same text. It knows nothing of
chat templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import pre_tokenizers

from octavo.errors import RequestError
from octavo.frontend.tokenizers.folder import load_folder
from octavo.frontend.tokenizers.gguf import load_gguf
from octavo.frontend.tokenizers.parts import TokenizerParts
from octavo.frontend.tokenizers.special_tokens import SpecialTokenFinder
from octavo.frontend.tokenizers.spelling import Spelling, find_spelling


class Tokenizer:
    """One model's tokenizer. Immutable once built, and safe to share between threads.

    "Special" tokens are the control tokens of the model: they structure a conversation and are no part of its
    text.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self.bos_token_id = parts.bos_token_id
        self.eos_token_ids = parts.eos_token_ids
        self.role_texts = parts.role_texts
        self.chat_template = parts.chat_template
        self._backend = parts.backend
        self._added = parts.backend.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in self._added.items() if token.special)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer in a GGUF file's metadata. Raises UnsupportedError or WeightError, naming the key."""
        return cls(load_gguf(metadata))

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """The tokenizer of a Hugging Face folder. Raises ModelNotFoundError or WeightError, naming a file."""
        return cls(load_folder(Path(path)))

    @cached_property
    def vocab_size(self) -> int:
        """Number of ids: one more than the greatest id, added tokens included."""
        return max(self._backend.get_vocab_size(with_added_tokens=False), *(i + 1 for i in self._added), 0)

    @cached_property
    def add_bos_token(self) -> bool:
        """Whether `encode` starts a text with BOS by default."""
        return self.bos_token_id is not None and self.encode("")[:1] == [self.bos_token_id]

    @cached_property
    def special_tokens(self) -> SpecialTokenFinder:
        """Finds the texts of special tokens in a text."""
        return SpecialTokenFinder({token.content: i for i, token in self._added.items() if token.special})

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`, in which the texts of special tokens become those tokens.

        With `add_special_tokens` the model's BOS (and EOS, for the few models that want it) is put around the
        text. Raises RequestError for text that is not Unicode.
        """
        return self._encode(self._backend, text, add_special_tokens)

    def encode_segments(self, segments: Sequence[str | int]) -> list[int]:
        """Ids of a text in segments: a string is plain text, an integer is the id of a special token."""
        ids: list[int] = []
        for before, segment, after in zip((None, *segments), segments, (*segments[1:], None), strict=False):
            if isinstance(segment, int):
                ids.append(segment)
                continue
            # A few models declare that a control token absorbs the white space before or after it.
            if isinstance(after, int) and self._added[after].lstrip:
                segment = segment.rstrip()
            if isinstance(before, int) and self._added[before].rstrip:
                segment = segment.lstrip()
            backend = self._plain_backend if before is None else self._inner_backend
            ids += self._encode_without_special(backend, segment)
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `token_ids`. Bytes that are not UTF-8 become U+FFFD. Raises RequestError for an unknown
        id.

        A space that SentencePiece put before the first word is dropped at the start of the text.
        """
        kept = (i for i in token_ids if not (skip_special_tokens and i in self._special_ids))
        text = b"".join(map(self.token_bytes, kept)).decode(errors="replace")
        return text.removeprefix(" ") if self.drops_first_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that `token_id` stands for; a special token stands for its own name."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def token_text(self, token_id: int) -> str:
        """`token_bytes` as text, for display. Bytes that are not UTF-8 by themselves become U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")

    def is_special(self, token_id: int) -> bool:
        """Whether `token_id` is a control token."""
        return token_id in self._special_ids

    @property
    def drops_first_space(self) -> bool:
        """Whether decoding drops one space at the start of a text, because encoding adds one there."""
        return self._spelling.drops_first_space

    def _spell(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
        if token is None:
            raise RequestError(
                f"{token_id} is not a token id; this model's ids are 0 to {self.vocab_size - 1}"
            )
        return self._spelling.to_bytes(token, token_id in self._added)

    @cached_property
    def _spelling(self) -> Spelling:
        return find_spelling(self._backend)

    @cached_property
    def _plain_backend(self) -> tokenizers.Tokenizer:
        return self._make_plain_backend(self._backend.pre_tokenizer)

    @cached_property
    def _inner_backend(self) -> tokenizers.Tokenizer:
        """The tokenizer for text after a special token.

        If the model adds a space only at the start of a whole text, this tokenizer adds none.
        """
        pre_tokenizer = self._backend.pre_tokenizer
        if isinstance(pre_tokenizer, pre_tokenizers.Metaspace) and pre_tokenizer.prepend_scheme == "first":
            inner = pre_tokenizers.Metaspace(pre_tokenizer.replacement, "never", pre_tokenizer.split)
            return self._make_plain_backend(inner)
        return self._plain_backend

    def _make_plain_backend(self, pre_tokenizer: pre_tokenizers.PreTokenizer | None) -> tokenizers.Tokenizer:
        """A second tokenizer over the same model (shared, not copied). It finds no special tokens in text."""
        plain = tokenizers.Tokenizer(self._backend.model)
        plain.normalizer = self._backend.normalizer
        plain.pre_tokenizer = pre_tokenizer
        # Tokens outside the model's vocabulary get consecutive ids: in this order they keep their ids.
        plain.add_tokens([self._added[token_id] for token_id in sorted(self._added)])
        plain.encode_special_tokens = True
        return plain

    def _encode(self, backend: tokenizers.Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
        try:
            return list(backend.encode(text, add_special_tokens=add_special_tokens).ids)
        except (TypeError, UnicodeError) as error:
            raise RequestError(
                f"the text is not valid Unicode, so it cannot be tokenized: {error}"
            ) from error

    def _encode_without_special(self, backend: tokenizers.Tokenizer, text: str) -> list[int]:
        ids = self._encode(backend, text, False)
        if self._special_ids.isdisjoint(ids):
            return ids
        # A vocabulary may also have a special token's text as an ordinary word. Encoding the text letter by
        # letter avoids that word.
        spelled: list[int] = []
        for token_id in ids:
            letters = self.token_text(token_id) if token_id in self._special_ids else ""
            spelled += [i for letter in letters for i in self._encode(backend, letter, False)] or [token_id]
        return spelled
