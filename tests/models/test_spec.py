"""What is read from GGUF metadata and from config.json, and how what is wrong is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.errors import UnsupportedError, WeightError
from octavo.models.llama import LlamaSpec
from octavo.models.load import spec_from_config, spec_from_gguf
from octavo.models.registry import GGUF_ARCHITECTURES, HUGGING_FACE_ARCHITECTURES
from octavo.models.rope import LinearScaling, Llama3Scaling, NoScaling, RopeSpec, YarnScaling
from tests.models.tiny_llama import ArraySource, gguf_content, make_arrays, make_config

CONFIG = make_config()
METADATA, TENSORS = gguf_content(CONFIG, make_arrays(CONFIG))
SOURCE = ArraySource(TENSORS)

WRONG_NUMBERS = [0, -1, True, "8", 8.5, [8, 8], 2**40]


def gguf_spec(**changes: Any) -> LlamaSpec:
    """The spec of METADATA with `changes`, whose names have __ for dots; None removes a key."""
    changed = METADATA | {f"llama.{name.replace('__', '.')}": value for name, value in changes.items()}
    return spec_from_gguf({key: value for key, value in changed.items() if value is not None}, SOURCE)


def config_spec(**changes: Any) -> LlamaSpec:
    return spec_from_config(make_config(**changes), "tiny")


def test_both_files_of_a_model_give_the_same_shape() -> None:
    expected = LlamaSpec(
        name="tiny",
        layout="huggingface",
        num_layers=2,
        hidden_size=48,
        intermediate_size=80,
        num_heads=6,
        num_kv_heads=2,
        head_size=8,
        vocab_size=101,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        rope=RopeSpec(10000.0, 8, NoScaling()),
        attention_scale=8**-0.5,
        tied_head=False,
    )
    assert config_spec() == expected
    in_gguf = gguf_spec(rope__scaling__type="none")
    assert (in_gguf.layout, in_gguf.rope) == ("gguf", expected.rope)
    assert in_gguf.architecture == expected.architecture == "llama"
    for field in (
        "name",
        "num_layers",
        "hidden_size",
        "num_heads",
        "num_kv_heads",
        "vocab_size",
    ):
        assert getattr(in_gguf, field) == getattr(expected, field)
    for field in ("intermediate_size", "head_size", "max_position_embeddings", "rms_norm_eps", "tied_head"):
        assert getattr(in_gguf, field) == getattr(expected, field)


def test_optional_gguf_keys_that_are_absent_have_the_defaults_of_the_specification() -> None:
    spec = gguf_spec(attention__head_count_kv=None, rope__dimension_count=None, rope__freq_base=None)
    assert (spec.num_kv_heads, spec.rope.rotary_size, spec.rope.theta) == (6, 8, 10000.0)
    assert gguf_spec(attention__key_length=None, attention__value_length=None).head_size == 48 // 6


def test_config_keys_that_are_absent_have_the_defaults_of_hugging_face() -> None:
    names = (
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "tie_word_embeddings",
        "attention_bias",
        "rope_theta",
    )
    spec = config_spec(**dict.fromkeys(names))
    assert (spec.num_kv_heads, spec.head_size, spec.rms_norm_eps, spec.rope.theta) == (6, 8, 1e-6, 10000.0)
    assert not spec.tied_head
    assert not spec.attention_bias


def test_gguf_tensors_tell_of_a_tied_head_and_biases() -> None:
    config = make_config(tie_word_embeddings=True, attention_bias=True, mlp_bias=True)
    metadata, tensors = gguf_content(config, make_arrays(config))
    spec = spec_from_gguf(metadata, ArraySource(tensors))
    assert spec.tied_head
    assert spec.attention_bias
    assert spec.attention_output_bias
    assert spec.mlp_bias


@pytest.mark.parametrize("value", [None, *WRONG_NUMBERS])
@pytest.mark.parametrize(
    "key",
    ["block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count"],
)
def test_gguf_key_that_is_missing_or_absurd_is_named(key: str, value: object) -> None:
    with pytest.raises(WeightError, match=rf"'llama\.{key}'"):
        gguf_spec(**{key.replace(".", "__"): value})


@pytest.mark.parametrize("value", WRONG_NUMBERS)
@pytest.mark.parametrize("key", ["attention.head_count_kv", "attention.key_length", "rope.dimension_count"])
def test_optional_gguf_key_that_is_absurd_is_named(key: str, value: object) -> None:
    with pytest.raises(WeightError, match=rf"'llama\.{key}'"):
        gguf_spec(**{key.replace(".", "__"): value})


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), "1e-5", True, 10**400])
@pytest.mark.parametrize("key", ["attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor"])
def test_gguf_number_that_is_absurd_is_named(key: str, value: object) -> None:
    with pytest.raises(WeightError, match=rf"'llama\.{key}'"):
        gguf_spec(**{key.replace(".", "__"): value})


@pytest.mark.parametrize("value", [None, *WRONG_NUMBERS])
@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"])
def test_config_key_that_is_missing_or_absurd_is_named(key: str, value: object) -> None:
    with pytest.raises(WeightError, match=rf"config\.json: key '{key}'"):
        config_spec(**{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_theta", 1.0),
        ("attention_bias", 1),
        ("rope_scaling", "yarn"),
        ("architectures", []),
        ("architectures", None),
        ("architectures", "LlamaForCausalLM"),
    ],
)
def test_config_value_of_the_wrong_kind_is_named(key: str, value: object) -> None:
    with pytest.raises(WeightError, match=f"'{key}'"):
        config_spec(**{key: value})


@pytest.mark.parametrize("shape", [(), (101,), (101, 6, 8)])
def test_gguf_embedding_that_is_no_matrix_is_named(shape: tuple[int, ...]) -> None:
    source = ArraySource({**TENSORS, "token_embd.weight": np.zeros(shape)})
    with pytest.raises(WeightError, match=r"'token_embd\.weight' has shape \("):
        spec_from_gguf(METADATA, source)


def test_missing_architecture_is_named() -> None:
    with pytest.raises(WeightError, match=r"'general\.architecture'"):
        spec_from_gguf({}, SOURCE)


def test_unsupported_gguf_architecture_is_refused_in_one_line_with_what_is_supported() -> None:
    with pytest.raises(UnsupportedError, match=rf"^.*'foo'.*supported: {', '.join(GGUF_ARCHITECTURES)}$"):
        spec_from_gguf({"general.architecture": "foo"}, SOURCE)


def test_unsupported_huggingface_architecture_is_refused_with_what_is_supported() -> None:
    with pytest.raises(
        UnsupportedError,
        match=rf"^.*'FooForCausalLM'.*supported: {', '.join(HUGGING_FACE_ARCHITECTURES)}$",
    ):
        spec_from_config({"architectures": ["FooForCausalLM"]}, "foo")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_count", 8),
        ("attention.scale", 0.1),
        ("attention.value_length", 4),
        ("rope.scaling.type", "longrope"),
    ],
)
def test_unsupported_gguf_variation_is_named(key: str, value: object) -> None:
    with pytest.raises(UnsupportedError, match=rf"'llama\.{key}'"):
        gguf_spec(**{key.replace(".", "__"): value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("quantization_config", {"quant_method": "gptq"}),
        ("sliding_window", 64),
        ("rope_scaling", {"type": "dynamic", "factor": 2.0}),
    ],
)
def test_unsupported_config_variation_is_named(key: str, value: object) -> None:
    with pytest.raises(UnsupportedError, match="type" if key == "rope_scaling" else f"'{key}'"):
        config_spec(**{key: value})


def test_zero_experts_and_a_window_as_long_as_the_context_are_plain() -> None:
    assert gguf_spec(expert_count=0) == gguf_spec()
    assert config_spec(sliding_window=256) == config_spec()
    assert config_spec(sliding_window=None, hidden_act="silu") == config_spec()


def test_heads_that_cannot_be_shared_evenly_are_refused() -> None:
    with pytest.raises(WeightError, match="6 attention heads cannot share 4 KV heads"):
        config_spec(num_key_value_heads=4)


@pytest.mark.parametrize("size", [7, 10])
def test_rotary_features_that_do_not_fit_a_head_are_refused(size: int) -> None:
    with pytest.raises(WeightError, match=f"{size} rotary features"):
        gguf_spec(rope__dimension_count=size)


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"type": "linear", "factor": 2.0}, LinearScaling(2.0)),
        ({"rope_type": "linear", "factor": 2}, LinearScaling(2.0)),
        ({"rope_type": "default"}, NoScaling()),
        ({}, NoScaling()),
        ({"rope_type": "llama3", **LLAMA3}, Llama3Scaling(8.0, 1.0, 4.0, 64)),
        (
            {"type": "yarn", "factor": 4.0, "attention_factor": 1.2, "beta_fast": 16},
            YarnScaling(4.0, 256, magnitude=1.2, beta_fast=16.0),
        ),
    ],
)
def test_old_and_new_spelling_of_rope_are_read_alike(scaling: dict[str, Any], expected: object) -> None:
    old = config_spec(rope_scaling=scaling, rope_theta=500.0)
    new = config_spec(rope_parameters={**scaling, "rope_theta": 500.0}, rope_theta=None)
    assert old.rope == new.rope == RopeSpec(500.0, 8, expected)


def test_original_context_may_stand_beside_the_scaling() -> None:
    spec = config_spec(
        rope_scaling={"type": "yarn", "factor": 4.0, "attention_factor": 1.0},
        original_max_position_embeddings=32,
    )
    assert spec.rope.scaling == YarnScaling(4.0, 32, magnitude=1.0)


def test_llama3_scaling_whose_ramp_is_upside_down_is_refused() -> None:
    with pytest.raises(WeightError, match="'high_freq_factor' must be a number greater than 1"):
        config_spec(rope_scaling={"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0})


def test_gguf_scaling_is_linear_unless_its_type_says_yarn() -> None:
    assert gguf_spec(rope__scale_linear=2.0).rope.scaling == LinearScaling(2.0)
    assert gguf_spec(rope__scaling__factor=4.0).rope.scaling == LinearScaling(4.0)
    yarn = gguf_spec(
        rope__scaling__type="yarn",
        rope__scaling__factor=1.0,
        rope__scaling__attn_factor=1.5,
        rope__scaling__yarn_beta_slow=2.0,
    )
    assert yarn.rope.scaling == YarnScaling(1.0, 256, magnitude=1.5, beta_slow=2.0)
