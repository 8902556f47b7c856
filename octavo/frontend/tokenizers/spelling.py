"""Spellings turn the text of a token into the bytes that it stands for.

A vocabulary spells bytes and spaces in its own way. The tokenizer's decoder says which, so a Hugging Face
folder needs no file but `tokenizer.json`.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import tokenizers

from octavo.errors import UnsupportedError


class Spelling(Protocol):
    """How tokens spell text. `drops_first_space`: encoding puts a space before a text."""

    drops_first_space: bool

    def to_bytes(self, token: str, is_added: bool) -> bytes:
        """The bytes that `token` stands for. `is_added`: it was added to the vocabulary as literal text."""
        ...


class ByteLevelSpelling:
    """Every byte is one printable character: a printable byte itself, others from U+0100 on (GPT-2)."""

    drops_first_space = False

    def __init__(self) -> None:
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [byte for byte in range(0x100) if byte not in printable]
        self._byte_of = {chr(byte): byte for byte in printable}
        self._byte_of |= {chr(0x100 + index): byte for index, byte in enumerate(others)}

    def to_bytes(self, token: str, is_added: bool) -> bytes:
        """The bytes behind the characters of `token`."""
        if is_added:
            return token.encode()
        try:
            return bytes([self._byte_of[character] for character in token])
        except KeyError:  # padding tokens of a vocabulary are plain text
            return token.encode()


class SentencePieceSpelling:
    """A space is U+2581. With `has_byte_tokens`, a token such as <0xAB> is one byte."""

    def __init__(self, drops_first_space: bool, has_byte_tokens: bool) -> None:
        self.drops_first_space = drops_first_space
        self._byte_of = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(0x100)} if has_byte_tokens else {}

    def to_bytes(self, token: str, is_added: bool) -> bytes:
        """The byte that `token` names, or its text with spaces."""
        byte = self._byte_of.get(token)
        return token.replace("\u2581", " ").encode() if byte is None else byte


def find_spelling(tokenizer: tokenizers.Tokenizer) -> Spelling:
    """The spelling that the tokenizer's decoder undoes. Raises UnsupportedError for an unknown decoder."""
    steps = _decoder_steps(tokenizer)
    if "ByteLevel" in steps:
        return ByteLevelSpelling()
    if "Metaspace" in steps:
        return SentencePieceSpelling(
            steps["Metaspace"].get("prepend_scheme", "always") != "never", "ByteFallback" in steps
        )
    if steps.get("Replace", {}).get("content") == " ":
        return SentencePieceSpelling("Strip" in steps, "ByteFallback" in steps)
    raise UnsupportedError(
        f"this tokenizer decodes by {sorted(steps) or 'nothing'}, which does not say what bytes a token "
        "stands for; text can be generated with byte-level tokenizers (ByteLevel) and SentencePiece ones "
        "(Metaspace, or Replace of U+2581)"
    )


def _decoder_steps(tokenizer: tokenizers.Tokenizer) -> dict[str, dict[str, Any]]:
    """The settings of each step of the decoder, by the type of the step."""
    if tokenizer.decoder is None:
        return {}
    decoder = json.loads(tokenizer.decoder.__getstate__())
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return {step["type"]: step for step in steps}
