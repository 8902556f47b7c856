"""The parts of a tokenizer, which every source (GGUF metadata, a Hugging Face folder) provides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tokenizers
from tokenizers import processors


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """A tokenizer of the library `tokenizers`, and the model's facts that the library does not hold.

    `eos_token_ids` are all ids that end generation, the model's own EOS first. `role_texts` are the texts a
    chat template may ask for by name: `bos_token`, `eos_token`, `unk_token`, `pad_token`.
    """

    backend: tokenizers.Tokenizer
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    role_texts: Mapping[str, str]
    chat_template: str | None


def add_affixes(backend: tokenizers.Tokenizer, bos_token: str | None, eos_token: str | None) -> None:
    """Make `backend`, which must have these tokens, put them around a text encoded with special tokens."""
    tokens = {name: text for name, text in (("bos", bos_token), ("eos", eos_token)) if text is not None}
    # The template uses these names, because "$" and ":" in a token's own text have a meaning in a template.
    backend.post_processor = processors.TemplateProcessing(
        single=[piece for piece in ("bos", "$A", "eos") if piece in {*tokens, "$A"}],
        special_tokens=[
            {"id": name, "ids": [backend.token_to_id(text)], "tokens": [text]}
            for name, text in tokens.items()
        ],
    )
