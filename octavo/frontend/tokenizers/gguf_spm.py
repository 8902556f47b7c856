"""SentencePiece BPE from a GGUF file (`tokenizer.ggml.model` = "llama"): a score for every token, no merges.

SentencePiece repeatedly joins the two adjacent tokens that together are the token with the best score
("SentencePiece: A simple and language independent subword tokenizer", 2018). This equals BPE with one merge
for each way to cut a token into two tokens, ranked by the score of the whole token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers

from octavo.frontend.tokenizers.gguf_vocabulary import NORMAL, SPACE, USER_DEFINED, GGUFVocabulary, read_array


def respell_spaces(vocabulary: GGUFVocabulary) -> GGUFVocabulary:
    """Spell user-defined tokens that are runs of spaces with U+2581, as in the text that tokens are found in.

    Converters write them with plain spaces, but normalization has replaced all spaces by then.
    """
    taken = set(vocabulary.tokens)
    tokens = list(vocabulary.tokens)
    for token_id, kind in enumerate(vocabulary.types):
        if kind == USER_DEFINED and tokens[token_id] and not tokens[token_id].strip(" "):
            run = SPACE * len(tokens[token_id])
            tokens[token_id] = tokens[token_id] if run in taken else run
    return GGUFVocabulary(tokens, vocabulary.types, vocabulary.roles)


def build_sentencepiece_bpe(
    metadata: Mapping[str, Any], vocabulary: GGUFVocabulary, ids_by_text: dict[str, int]
) -> tokenizers.Tokenizer:
    """The tokenizer without its added tokens. Raises WeightError if the file has no scores."""
    scores = read_array(metadata, "tokenizer.ggml.scores", float, length=len(vocabulary.tokens))
    unknown_id = vocabulary.roles.get("unknown")
    model = models.BPE(
        ids_by_text,
        _merges(vocabulary, ids_by_text, scores),
        unk_token=None if unknown_id is None else vocabulary.tokens[unknown_id],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = tokenizers.Tokenizer(model)
    spaces = normalizers.Replace(" ", SPACE)
    decoding = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
        tokenizer.decoder = decoders.Sequence([*decoding, decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = spaces
        tokenizer.decoder = decoders.Sequence(decoding)
    return tokenizer


def _merges(
    vocabulary: GGUFVocabulary, ids_by_text: dict[str, int], scores: list[float]
) -> list[tuple[str, str]]:
    """Every way to cut a token into two. The best token comes first, and its cut with the longest left part.

    Control tokens are left out, so that no run of ordinary text can become one. User-defined tokens come
    first: SentencePiece takes them out of the text beforehand, and converters give them no meaningful score.
    """
    ranked = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
    tokens, types = vocabulary.tokens, vocabulary.types
    first = [tokens[i] for i in range(len(tokens)) if types[i] == USER_DEFINED]
    return [
        (left, right)
        for token in (*first, *(tokens[i] for i in ranked if types[i] == NORMAL))
        for cut in range(len(token) - 1, 0, -1)
        if (right := token[cut:]) in ids_by_text and (left := token[:cut]) in ids_by_text
    ]
