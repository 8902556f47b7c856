"""The vocabulary of a GGUF file: the text and the type of each token, and the ids of tokens with a role.

`gguf_bpe` and `gguf_spm` define how text is split into these tokens.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken

from octavo.errors import WeightError

SPACE = "\u2581"  # how SentencePiece writes a space

# Values of tokenizer.ggml.token_type that matter here (the others are 5 unused and 6 byte).
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4

# Texts that end a turn or a document if a model has them as control tokens. A file often names only one of
# those that its model has.
_END_OF_GENERATION = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "<eos>",
    "</s>",
)
# If <|return|> and <|call|> exist (the harmony format), <|end|> ends a message and not the turn.
_HARMONY_END, _HARMONY_STOPS = "<|end|>", ("<|return|>", "<|call|>")


@dataclass(frozen=True, slots=True)
class GGUFVocabulary:
    """Token texts and types by id, and the ids that have a role (`bos`, `eos`, `unknown`, …)."""

    tokens: list[str]
    types: list[int]
    roles: Mapping[str, int]

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> GGUFVocabulary:
        """Read tokens, token types and `<role>_token_id`. Raises WeightError if these are inconsistent."""
        tokens = read_array(metadata, "tokenizer.ggml.tokens", str)
        types = [NORMAL] * len(tokens)
        if "tokenizer.ggml.token_type" in metadata:
            types = read_array(metadata, "tokenizer.ggml.token_type", int, length=len(tokens))
        roles = {}
        for role in ("bos", "eos", "eot", "eom", "unknown", "padding"):
            token_id = metadata.get(f"tokenizer.ggml.{role}_token_id")
            if token_id is None:
                continue
            if type(token_id) is not int or not 0 <= token_id < len(tokens):
                raise WeightError(
                    f"tokenizer.ggml.{role}_token_id is {token_id!r:.80}; it must be the id of one of the "
                    f"file's {len(tokens)} tokens"
                )
            roles[role] = token_id
        return cls(tokens, types, roles)

    def ids_by_text(self) -> dict[str, int]:
        """Token id of every text. Raises WeightError if two tokens have the same text."""
        ids = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        if len(ids) < len(self.tokens):
            twin = next(i for i, token in enumerate(self.tokens) if ids[token] != i)
            raise WeightError(
                f"tokenizer.ggml.tokens has {self.tokens[twin]!r} twice, as {twin} and as "
                f"{ids[self.tokens[twin]]}"
            )
        return ids

    def added_tokens(self) -> list[AddedToken]:
        """The tokens that are found in a text before it is split, in order of id: unknown and control tokens
        (special), and user-defined tokens.

        Runs of U+2581 are left out. They stand for spaces, which are found after the text is normalized.
        """
        special = {UNKNOWN: True, CONTROL: True, USER_DEFINED: False}
        return [
            AddedToken(token, normalized=False, special=special[kind])
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind in special and token.strip(SPACE)
        ]

    def role_texts(self) -> dict[str, str]:
        """Texts that a chat template may ask for: `bos_token`, `eos_token`, `unk_token` and `pad_token`."""
        names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
        return {names[role]: self.tokens[token_id] for role, token_id in self.roles.items() if role in names}

    def eos_token_ids(self, ids_by_text: Mapping[str, int]) -> tuple[int, ...]:
        """Every id that ends generation, the file's own EOS first."""
        named = [self.roles[role] for role in ("eos", "eot", "eom") if role in self.roles]
        known = [text for text in _END_OF_GENERATION if self._is_control(ids_by_text.get(text))]
        if all(text in known for text in _HARMONY_STOPS) and _HARMONY_END in known:
            known.remove(_HARMONY_END)
        return tuple(dict.fromkeys([*named, *(ids_by_text[text] for text in known)]))

    def _is_control(self, token_id: int | None) -> bool:
        return token_id is not None and self.types[token_id] == CONTROL


def read_array(metadata: Mapping[str, Any], key: str, kind: type, length: int | None = None) -> list[Any]:
    """The array under `key` as a list.

    Raises WeightError if it is absent, holds anything but values of `kind` or is not `length` long.
    """
    if key not in metadata:
        raise WeightError(
            f"the file has no {key}, so text cannot be turned into tokens; convert the model again"
        )
    items = metadata[key]
    if not isinstance(items, list) or not all(type(item) is kind for item in items):
        raise WeightError(f"{key} must be an array of {kind.__name__}, not {reprlib.repr(items)}")
    if length is not None and len(items) != length:
        raise WeightError(f"{key} has {len(items)} entries for {length} tokens")
    return items
