"""Small tokenizers, in the forms that real ones come in: metadata of a GGUF file, a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from octavo.frontend.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BYTE_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level_metadata(
    merges: Sequence[str] = (),
    control: Sequence[str] = ("<|bos|>", "<|end|>"),
    extra: Mapping[str, int] | None = None,
    pre: str | None = "gpt-2",
    **keys: Any,
) -> dict[str, Any]:
    """Byte-level BPE: control tokens, then bytes, words that `merges` make, and `extra` (text → type)."""
    words = dict.fromkeys((*BYTE_ALPHABET, *(merge.replace(" ", "") for merge in merges)), NORMAL)
    tokens = dict.fromkeys(control, CONTROL) | words | dict(extra or {})
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": list(tokens.values()),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def sentencepiece_metadata(
    scores: Mapping[str, float], extra: Mapping[str, int] | None = None, **keys: Any
) -> dict[str, Any]:
    """A SentencePiece vocabulary: <unk>, <s>, </s>, all bytes, `extra` (text → type), then the scored
    tokens."""
    tokens = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL}
    tokens |= {f"<0x{byte:02X}>": BYTE for byte in range(256)} | dict(extra or {})
    tokens |= dict.fromkeys(scores, NORMAL)
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": list(tokens.values()),
        "tokenizer.ggml.scores": [scores.get(token, -1000.0) for token in tokens],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def byte_tokenizer(**options: Any) -> Tokenizer:
    """A tokenizer whose words are single bytes, unless `options` of `byte_level_metadata` say more."""
    return Tokenizer.from_gguf(byte_level_metadata(**options))


def ids_of(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One token for each byte of `data`, valid UTF-8 or not."""
    id_of_byte = {tokenizer.token_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    return [id_of_byte[bytes([byte])] for byte in data]


def byte_level_backend(special: Sequence[AddedToken | str]) -> tokenizers.Tokenizer:
    """A byte-level tokenizer of the library, with special tokens outside the model's vocabulary."""
    backend = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(BYTE_ALPHABET)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(special))
    return backend


def write_folder(folder: Path, backend: tokenizers.Tokenizer, **files: Any) -> Path:
    """Save `backend` as tokenizer.json and each of `files` (name without .json → content) beside it."""
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
