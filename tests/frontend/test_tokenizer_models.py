"""The tokenizers of real models give the ids of their reference tokenizers, on five thousand texts of all
kinds."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from octavo.frontend.tokenizer import Tokenizer
from octavo.weights.gguf import GGUFFile

NUM_TEXTS = 5000
SPACES = ["", " ", "  ", "\n"]
FRAGMENTS = [
    # words, contractions, code
    "the quick brown fox", "Hello", "don't", "we'll", "I'M", "they'VE", " it's", "it\u2019s",
    "aSnake_caseWord", "def f(x):\n    return x**2\n", "for (int i=0;i<10;++i) {\n\t\tx[i] = y->z;\n}",
    '<div class="a">', "</div>", "SELECT * FROM t WHERE a != 'b';", "\\n", "`code`",
    "http://example.com/a?b=c&d=%20", "user@example.com",
    # scripts
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8", "\u4e2d\u6587\u5b57\u7b26\uff0c\u6807\u70b9\u3002",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd", "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac",
    # emoji, combining marks, look-alikes
    "\U0001f642", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea",
    "\U0001f44d\U0001f3fd", "e\u0301", "n\u0303o", "Z\u0351\u0329a\u0320lgo", "\ufb01", "\u00c5", "\u212b",
    "\u01c5", "\u00df", "\u0130i", "\U0001d54f", "\ue000", "\U0010ffff",
    # white space and control characters
    "\t", "\n", "\n\n\n", "\r\n", "    ", "\u00a0", "\u3000", "\u2003", "\u200b", "\ufeff", "\u2581",
    "\u2581\u2581x", "\x00", "\x07", "\x1b[0m", "\x7f",
    # digits and signs
    "123", "3.14159", "1,000,000", "0x1F", "\u00bd", "\u00b2\u00b3", "\u0661\u0662", "\u0e51\u0e52", "\u2167",
    "\uff11\uff12", "...", "---", "!!!", "(a[b{c}])", "@#$%^&*",
    # control tokens, whole and broken
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "end|>", "<start_of_turn>", "<end_of_turn>",
    "<bos>", "<eos>", "<unk>", "<pad>", "<unused7>", "<table>", "</code>", "<0x0A>", "<start_of_image>",
    "<repo_name>",
]  # fmt: skip


def make_texts() -> list[str]:
    rng = random.Random(0)
    texts = ["", " ", "  ", "\n", " a", "a "]

    def fragments() -> str:
        return rng.choice(SPACES).join(rng.choices(FRAGMENTS, k=rng.randint(1, 9)))

    def any_characters() -> str:
        planes = (range(32, 127), range(0x300), range(0x300, 0xD800), range(0xE000, 0x110000))
        return "".join(chr(rng.choice(rng.choice(planes))) for _ in range(rng.randint(1, 30)))

    def long_runs() -> str:
        return "".join(rng.choice(FRAGMENTS)[-1] * rng.randint(1, 60) for _ in range(rng.randint(1, 4)))

    def ascii_soup() -> str:
        return "".join(chr(rng.randrange(32, 127)) for _ in range(rng.randint(1, 80)))

    kinds = (fragments, fragments, fragments, any_characters, long_runs, ascii_soup)
    return texts + [rng.choice(kinds)() for _ in range(NUM_TEXTS - len(texts))]


TEXTS = make_texts()


def assert_same(tokenizer: Tokenizer, reference: tokenizers.Tokenizer) -> None:
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == reference.encode(text, add_special_tokens=False).ids, repr(text)
        assert tokenizer.decode(ids) == reference.decode(ids), repr(text)
        assert not any(map(tokenizer.is_special, tokenizer.encode_segments([text]))), repr(text)


@pytest.fixture(scope="module")
def smollm2_metadata(smollm2_path: Path) -> Mapping[str, Any]:
    return GGUFFile.open(smollm2_path).metadata


@pytest.fixture(scope="module")
def gemma3_metadata(gemma3_path: Path) -> Mapping[str, Any]:
    return GGUFFile.open(gemma3_path).metadata


@pytest.fixture(scope="module")
def gemma3(gemma3_metadata: Mapping[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(gemma3_metadata)


def test_smollm2_ids_are_those_of_its_published_recipe(smollm2_metadata: Mapping[str, Any]) -> None:
    tokens = smollm2_metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in smollm2_metadata["tokenizer.ggml.merges"]]
    reference = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    reference.decoder = decoders.ByteLevel()
    reference.add_special_tokens([AddedToken(token, normalized=False) for token in tokens[:17]])
    tokenizer = Tokenizer.from_gguf(smollm2_metadata)
    assert_same(tokenizer, reference)
    assert tokenizer.encode("a") == tokenizer.encode("a", add_special_tokens=False)
    assert {tokenizer.token_text(i) for i in tokenizer.eos_token_ids} == {"<|im_end|>", "<|endoftext|>"}


@pytest.mark.filterwarnings("ignore")  # of the libraries that make the reference
def test_gemma3_ids_are_those_of_transformers(gemma3: Tokenizer, gemma3_metadata: Mapping[str, Any]) -> None:
    mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    keys = mapping.GGUF_TOKENIZER_MAPPING["tokenizer"]
    described = {
        name: gemma3_metadata[f"tokenizer.{key}"]
        for key, name in keys.items()
        if f"tokenizer.{key}" in gemma3_metadata
    }
    reference, _ = mapping.convert_gguf_tokenizer("gemma3", described)
    assert_same(gemma3, reference)
    assert gemma3.encode("a") == [gemma3.bos_token_id, *gemma3.encode("a", add_special_tokens=False)]
    assert [gemma3.token_text(i) for i in gemma3.eos_token_ids] == ["<eos>", "<end_of_turn>"]


@pytest.mark.filterwarnings("ignore")
def test_gemma3_ids_are_those_of_sentencepiece(gemma3: Tokenizer, gemma3_metadata: Mapping[str, Any]) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    model = pytest.importorskip("sentencepiece.sentencepiece_model_pb2").ModelProto()
    names = ("tokens", "token_type", "scores")
    for token, kind, score in zip(
        *(gemma3_metadata[f"tokenizer.ggml.{name}"] for name in names), strict=True
    ):
        spaces = kind == model.SentencePiece.USER_DEFINED and not token.strip(" ")
        model.pieces.add(piece=token.replace(" ", "\u2581") if spaces else token, type=kind, score=score)
    model.pieces[3].type = model.SentencePiece.UNKNOWN
    model.trainer_spec.model_type = model.trainer_spec.BPE
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.unk_id, model.trainer_spec.bos_id, model.trainer_spec.eos_id = 3, 2, 1
    model.trainer_spec.bos_piece, model.trainer_spec.eos_piece = "<bos>", "<eos>"
    model.normalizer_spec.add_dummy_prefix = False
    model.normalizer_spec.remove_extra_whitespaces = False
    reference = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    for text in TEXTS:
        # The longest run of spaces that is a token has 31; how a longer one is cut differs from the Hugging
        # Face tokenizer, which the other test holds to.
        if "\u2581" * 32 not in text.replace(" ", "\u2581"):
            assert gemma3.encode_segments([text]) == reference.encode(text), repr(text)
