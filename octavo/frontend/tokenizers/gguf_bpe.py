"""Byte-level BPE from a GGUF file (`tokenizer.ggml.model` = "gpt2"): the merges are in the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import decoders, models

from octavo.errors import WeightError
from octavo.frontend.tokenizers.gguf_vocabulary import read_array
from octavo.frontend.tokenizers.pre_tokenizers import PreTokenizerKind


def build_byte_level_bpe(
    metadata: Mapping[str, Any], ids_by_text: dict[str, int], kind: PreTokenizerKind
) -> tokenizers.Tokenizer:
    """The tokenizer without its added tokens. Raises WeightError if a merge names a text that is no token."""
    merges = [_split_merge(merge) for merge in read_array(metadata, "tokenizer.ggml.merges", str)]
    try:
        model = models.BPE(ids_by_text, merges, ignore_merges=kind.whole_words)
    except Exception as error:  # the library raises nothing narrower
        raise WeightError(f"tokenizer.ggml.merges does not fit tokenizer.ggml.tokens: {error}") from error
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = kind.normalizer()
    tokenizer.pre_tokenizer = kind.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _split_merge(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise WeightError(f"tokenizer.ggml.merges holds {merge!r}; a merge is two texts with a space between")
    return left, right
