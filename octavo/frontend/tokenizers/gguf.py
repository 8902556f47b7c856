"""A whole tokenizer from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers

from octavo.errors import UnsupportedError, WeightError
from octavo.frontend.tokenizers.gguf_bpe import build_byte_level_bpe
from octavo.frontend.tokenizers.gguf_spm import build_sentencepiece_bpe, respell_spaces
from octavo.frontend.tokenizers.gguf_vocabulary import GGUFVocabulary
from octavo.frontend.tokenizers.parts import TokenizerParts, add_affixes
from octavo.frontend.tokenizers.pre_tokenizers import find_pre_tokenizer


def load_gguf(metadata: Mapping[str, Any]) -> TokenizerParts:
    """Build the tokenizer that `metadata` describes.

    Raises UnsupportedError for a kind of tokenizer or pre-tokenizer that is not known, WeightError for
    metadata that is incomplete or contradicts itself.
    """
    vocabulary = GGUFVocabulary.from_metadata(metadata)
    match metadata.get("tokenizer.ggml.model"):
        case "gpt2":
            kind = find_pre_tokenizer(metadata.get("tokenizer.ggml.pre"))
            ids_by_text = vocabulary.ids_by_text()
            backend = build_byte_level_bpe(metadata, ids_by_text, kind)
            adds_bos = kind.adds_bos
        case "llama":
            vocabulary = respell_spaces(vocabulary)
            ids_by_text = vocabulary.ids_by_text()
            backend = build_sentencepiece_bpe(metadata, vocabulary, ids_by_text)
            adds_bos = True
        case other:
            raise UnsupportedError(
                f'tokenizer.ggml.model is {other!r}; supported are "gpt2" (byte-level BPE) and "llama" '
                "(SentencePiece BPE); for another kind, give the model's Hugging Face folder as tokenizer"
            )
    template = metadata.get("tokenizer.chat_template")
    if not isinstance(template, str | None):
        raise WeightError(f"tokenizer.chat_template must be text, not {template!r:.80}")
    backend.add_tokens(vocabulary.added_tokens())
    _add_affixes(backend, metadata, vocabulary, adds_bos)
    return TokenizerParts(
        backend=backend,
        bos_token_id=vocabulary.roles.get("bos"),
        eos_token_ids=vocabulary.eos_token_ids(ids_by_text),
        role_texts=vocabulary.role_texts(),
        chat_template=template,
    )


def _add_affixes(
    backend: tokenizers.Tokenizer, metadata: Mapping[str, Any], vocabulary: GGUFVocabulary, adds_bos: bool
) -> None:
    """Put BOS and EOS around texts as the file's flags say. Without a flag for BOS, `adds_bos` decides."""
    flags = {
        "bos": metadata.get("tokenizer.ggml.add_bos_token"),
        "eos": metadata.get("tokenizer.ggml.add_eos_token"),
    }
    for role, flag in flags.items():
        if flag and role not in vocabulary.roles:
            raise WeightError(f"tokenizer.ggml.add_{role}_token is true, but the file has no {role}_token_id")
    wanted = {"bos": adds_bos if flags["bos"] is None else flags["bos"], "eos": flags["eos"]}
    texts = {
        role: vocabulary.tokens[token_id] for role, token_id in vocabulary.roles.items() if wanted.get(role)
    }
    add_affixes(backend, texts.get("bos"), texts.get("eos"))
