"""Gemma 3 against Hugging Face's: tiny ones on the same random weights, from both kinds of file, and the real
one of 270M with the weights of its own file, which the PyPI package `gguf` reads and dequantizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM
from octavo.errors import UnsupportedError, WeightError
from octavo.models.gemma3 import Gemma3Spec
from octavo.models.load import load_model, open_model, spec_from_config, spec_from_gguf
from octavo.models.model import Model
from octavo.models.rope import LinearScaling, RopeSpec
from tests.backends.steps import Request, cache_config, run_steps, whole_prompt_logits
from tests.models.comparison import (
    assert_equal_logits,
    assert_greedy_tokens_are_theirs,
    logits_of,
    model_in_folder,
    model_in_gguf,
    score_a_text,
)
from tests.models.tiny_llama import ArraySource
from tests.native import BACKENDS, make_backend
from tests.tiny_gemma3 import CONFIG, WINDOW, as_huggingface, gguf_content, make_arrays

NUM_TOKENS = 150
TOKEN_IDS = np.random.default_rng(0).integers(0, CONFIG["vocab_size"], NUM_TOKENS)

LINEAR = {"rope_type": "linear", "factor": 4.0}
VARIATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "long global positions": {"rope_scaling": LINEAR},
    "a window of one token": {"sliding_window": 1},
    "a window longer than the prompt": {"sliding_window": NUM_TOKENS + 1},
    "another base": {"rope_theta": 5000.0},
}
# What the converter to GGUF does not write.
FOLDER_VARIATIONS: dict[str, dict[str, Any]] = {
    "another base of windows": {"rope_local_base_freq": 300.0},
    "another scale": {"query_pre_attn_scalar": 21},
    "layers in another order": {
        "layer_types": ["full_attention", "sliding_attention"] * 3 + ["full_attention"]
    },
}


def config_with(**changes: Any) -> dict[str, Any]:
    return {**CONFIG, **changes}


def tiny_model() -> Model:
    return load_model(ArraySource(make_arrays(CONFIG)), spec_from_config(CONFIG, "tiny"))


class TransformersGemma3:
    """Hugging Face's Gemma 3 in float32, with `arrays` by their Hugging Face names."""

    def __init__(self, config: dict[str, Any], arrays: Iterable[tuple[str, np.ndarray]]) -> None:
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        gemma3_config = transformers.Gemma3TextConfig.from_dict(config, attn_implementation="eager")
        self.model = transformers.Gemma3ForCausalLM(gemma3_config).eval()
        parameters = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, array in arrays:
                parameters.pop(name).copy_(torch.from_numpy(array))
        assert not parameters, f"{list(parameters)} have no values"

    def logits(self, token_ids: np.ndarray | list[int]) -> np.ndarray:
        """Logits [len(token_ids), vocab] float32 of every position."""
        import torch

        with torch.inference_mode():
            return self.model(torch.tensor(token_ids)[None]).logits[0].numpy()

    def logprobs(self, token_ids: list[int]) -> np.ndarray:
        """Log-probabilities [len(token_ids) - 1] of the tokens from the second on, a few at a time."""
        import torch

        with torch.inference_mode():
            hidden = self.model.model(torch.tensor(token_ids)[None]).last_hidden_state[0, :-1]
            targets = torch.tensor(token_ids[1:])[:, None]
            parts = [
                torch.log_softmax(self.model.lm_head(rows), dim=-1).gather(1, ids)
                for rows, ids in zip(hidden.split(64), targets.split(64), strict=True)
            ]
            return torch.cat(parts)[:, 0].numpy()


# ----------------------------------------------------------------------------------------- tiny models


@pytest.mark.parametrize("name", VARIATIONS | FOLDER_VARIATIONS)
def test_folder_gives_the_logits_of_hugging_face(name: str, tmp_path: Path) -> None:
    config = config_with(**(VARIATIONS | FOLDER_VARIATIONS)[name])
    theirs = TransformersGemma3(config, make_arrays(config).items())
    theirs.model.save_pretrained(tmp_path)  # with the keys of transformers 5, and norms as they are trained
    assert_equal_logits(logits_of(model_in_folder(tmp_path), TOKEN_IDS), theirs.logits(TOKEN_IDS))


@pytest.mark.parametrize("name", VARIATIONS)
def test_gguf_gives_the_logits_of_hugging_face(name: str, tmp_path: Path) -> None:
    config = config_with(**VARIATIONS[name])
    expected = TransformersGemma3(config, make_arrays(config).items()).logits(TOKEN_IDS)
    metadata, tensors = gguf_content(config, make_arrays(config))
    assert_equal_logits(
        logits_of(model_in_gguf(tmp_path / "tiny.gguf", metadata, tensors), TOKEN_IDS), expected
    )


def test_a_token_is_seen_through_windows_as_far_as_hugging_face_lets_it(tmp_path: Path) -> None:
    """With windows alone, what the first token was is forgotten after 1 + layers * (window - 1) tokens."""
    config = config_with(layer_types=["sliding_attention"] * 2, num_hidden_layers=2)
    changed = TOKEN_IDS.copy()
    changed[0] = (changed[0] + 1) % CONFIG["vocab_size"]
    theirs = TransformersGemma3(config, make_arrays(config).items())
    ours = load_model(ArraySource(make_arrays(config)), spec_from_config(config, "tiny"))
    for one, other in (
        (theirs.logits(TOKEN_IDS), theirs.logits(changed)),
        (logits_of(ours, TOKEN_IDS), logits_of(ours, changed)),
    ):
        differs = (one != other).any(axis=1)
        assert differs[: 2 * WINDOW - 1].all()
        assert not differs[2 * WINDOW - 1 :].any()


@pytest.mark.parametrize("backend_name", BACKENDS)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_leave_no_trace(backend_name: str, chunk: int) -> None:
    model, backend = tiny_model(), make_backend(backend_name)
    backend.load_model(model)
    whole = whole_prompt_logits(backend, model, TOKEN_IDS)
    backend.allocate_kv_cache(cache_config(backend, model, 16, 21))
    request = Request(TOKEN_IDS, np.arange(20, 0, -1, dtype=np.int32).reshape(2, 10))
    steps = [{0: min(chunk, NUM_TOKENS - start)} for start in range(0, NUM_TOKENS, chunk)]
    (logits,) = run_steps(backend, [request], steps, 16)
    assert np.array_equal(logits, whole)


@pytest.mark.parametrize("backend_name", BACKENDS[1:])
def test_native_gives_the_logits_of_the_reference(backend_name: str) -> None:
    model, native = tiny_model(), make_backend(backend_name, "f32")
    native.load_model(model)
    expected = logits_of(model, TOKEN_IDS)
    actual = whole_prompt_logits(native, model, TOKEN_IDS)
    # All float32, but exponentials within 4e-6.
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


# ---------------------------------------------------------------------------------- keys of their files


def gguf_spec(**changes: Any) -> Gemma3Spec:
    """The spec of the tiny model with `changes`, whose names have __ for dots; None removes a key."""
    metadata, tensors = gguf_content(CONFIG, make_arrays(CONFIG))
    metadata |= {f"gemma3.{name.replace('__', '.')}": value for name, value in changes.items()}
    return spec_from_gguf({k: v for k, v in metadata.items() if v is not None}, ArraySource(tensors))


def config_spec(**changes: Any) -> Gemma3Spec:
    return spec_from_config(config_with(**changes), "tiny")


def test_both_files_say_the_same() -> None:
    for spec in (gguf_spec(), config_spec()):
        assert spec.architecture == "gemma3"
        assert spec.tied_head
        assert spec.attention_scale == 32**-0.5
        assert spec.rope.theta == 1e6
        assert (spec.window.size, spec.window.rope) == (WINDOW, RopeSpec(10000.0, 32))
        assert spec.window.layers == {0, 1, 2, 3, 4, 6}
        assert [spec.window_of(layer) is None for layer in (4, 5, 6)] == [False, True, False]


def test_absent_keys_have_the_defaults_of_hugging_face() -> None:
    transformers = pytest.importorskip("transformers")
    needed = ("architectures", "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
    spec = spec_from_config({key: CONFIG[key] for key in (*needed, "vocab_size")}, "tiny")
    theirs = transformers.Gemma3TextConfig(num_hidden_layers=CONFIG["num_hidden_layers"])
    assert spec.head_size == theirs.head_dim
    assert spec.num_kv_heads == theirs.num_key_value_heads
    assert spec.max_position_embeddings == theirs.max_position_embeddings
    assert spec.rms_norm_eps == theirs.rms_norm_eps
    assert spec.tied_head == theirs.tie_word_embeddings
    assert spec.attention_scale == theirs.query_pre_attn_scalar**-0.5
    assert spec.window.size == theirs.sliding_window
    assert spec.rope.theta == theirs.rope_parameters["full_attention"]["rope_theta"]
    assert spec.window.rope.theta == theirs.rope_parameters["sliding_attention"]["rope_theta"]
    for layer, kind in enumerate(theirs.layer_types):
        assert (spec.window_of(layer) is None) == (kind == "full_attention")


def test_positions_are_stretched_for_layers_without_a_window_alone() -> None:
    in_gguf = gguf_spec(rope__scaling__type="linear", rope__scaling__factor=8.0)
    for spec in (in_gguf, config_spec(rope_scaling={"rope_type": "linear", "factor": 8.0})):
        assert spec.rope == RopeSpec(1e6, 32, LinearScaling(8.0))
        assert spec.window.rope == RopeSpec(10000.0, 32)


def test_gguf_may_say_another_pattern_and_another_base() -> None:
    spec = gguf_spec(attention__sliding_window_pattern=3, rope__freq_base_swa=500.0)
    assert spec.window.layers == {0, 1, 3, 4, 6}
    assert spec.window.rope.theta == 500.0
    assert gguf_spec(attention__sliding_window=None).window is None


def test_config_may_say_the_pattern_as_a_number() -> None:
    assert config_spec(layer_types=None, sliding_window_pattern=3).window.layers == {0, 1, 3, 4, 6}


def test_the_27b_scales_as_if_its_heads_were_narrower() -> None:
    assert (
        gguf_spec(block_count=62, embedding_length=5376, attention__head_count=32).attention_scale
        == 168**-0.5
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.sliding_window", 0),
        ("attention.sliding_window", "512"),
        ("attention.sliding_window_pattern", 0),
        ("rope.freq_base_swa", 1.0),
    ],
)
def test_gguf_value_that_makes_no_sense_is_named(key: str, value: object) -> None:
    with pytest.raises(WeightError, match=rf"'gemma3\.{key}'"):
        gguf_spec(**{key.replace(".", "__"): value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sliding_window", 0),
        ("layer_types", ["full_attention"]),
        ("layer_types", ["sliding_attention"] * 6 + ["chunked_attention"]),
        ("query_pre_attn_scalar", 0),
        ("rope_local_base_freq", 1.0),
    ],
)
def test_config_value_that_makes_no_sense_is_named(key: str, value: object) -> None:
    with pytest.raises(WeightError, match=f"'{key}'"):
        config_spec(**{key: value})


@pytest.mark.parametrize("key", ["attn_logit_softcapping", "final_logit_softcapping"])
def test_soft_caps_are_refused_by_name(key: str) -> None:
    with pytest.raises(UnsupportedError, match=f"'gemma3.{key}' is 30.0"):
        gguf_spec(**{key: 30.0})
    with pytest.raises(UnsupportedError, match=f"'{key}' is 30.0"):
        config_spec(**{key: 30.0})


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_activation", "silu"), ("use_bidirectional_attention", True), ("attention_bias", True)],
)
def test_unsupported_config_variation_is_named(key: str, value: object) -> None:
    with pytest.raises(UnsupportedError, match=f"'{key}'"):
        config_spec(**{key: value})


# ------------------------------------------------------------------------------------- the real model

# <bos>The capital of France is Paris. The capital of
PROMPT = np.array([2, 818, 5279, 529, 7001, 563, 9079, 236761, 669, 5279, 529], np.int32)

# The model's published config.json.
REAL_CONFIG = {
    "vocab_size": 262144,
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 512,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
}
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "Q: What is 12 times 12?\nA:",
    "El sol sale por el",
]
NUM_NEW_TOKENS = 12
# Native kernels round activations to 8 bits and K and V to bfloat16.
NEAR_TIE_NATS = {"reference": 0.1, "native": 1.0}
LOSS_TOLERANCE = {"reference": 1e-4, "native": 5e-3}
NUM_SCORED_TOKENS = 640  # more than a window


@pytest.fixture(scope="module")
def transformers_model(gemma3_path: Path) -> TransformersGemma3:
    gguf = pytest.importorskip("gguf")
    tensors = gguf.GGUFReader(gemma3_path).tensors
    arrays = (
        as_huggingface(each.name, gguf.quants.dequantize(each.data, each.tensor_type)) for each in tensors
    )
    return TransformersGemma3(REAL_CONFIG, arrays)


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def llm(gemma3_path: Path, backend: str) -> LLM:
    settings = {"kv_cache_memory": "256MiB", "max_model_len": 2048, "max_num_batched_tokens": 128}
    return LLM(str(gemma3_path), backend=backend, **settings)


@pytest.mark.slow
def test_logits_of_the_real_model_are_those_of_hugging_face(
    gemma3_path: Path, transformers_model: TransformersGemma3
) -> None:
    logits = logits_of(open_model(gemma3_path), PROMPT)
    expected = transformers_model.logits(PROMPT)
    assert_equal_logits(logits, expected)
    assert np.array_equal(logits.argmax(axis=1), expected.argmax(axis=1))


@pytest.mark.slow
def test_greedy_tokens_of_the_real_model_are_those_of_hugging_face(
    llm: LLM, backend: str, transformers_model: TransformersGemma3
) -> None:
    near_tie = NEAR_TIE_NATS[backend]
    assert_greedy_tokens_are_theirs(llm, PROMPTS, NUM_NEW_TOKENS, transformers_model.logits, near_tie)


@pytest.mark.slow
def test_loss_of_the_real_model_beyond_a_window_is_that_of_hugging_face(
    llm: LLM, backend: str, transformers_model: TransformersGemma3
) -> None:
    token_ids, ours = score_a_text(llm, NUM_SCORED_TOKENS)
    theirs = transformers_model.logprobs(token_ids)
    assert ours.mean() == pytest.approx(theirs.mean(), rel=LOSS_TOLERANCE[backend])
    # That of tokens which see less than all of the text, too.
    assert ours[512:].mean() == pytest.approx(theirs[512:].mean(), rel=LOSS_TOLERANCE[backend])
