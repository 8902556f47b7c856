"""How weights are found, and what is said when they are not what the spec promises."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import octavo
from octavo.errors import UnsupportedError, WeightError
from octavo.models.layer_cache import FullAttentionCache
from octavo.models.load import load_model, spec_from_config
from octavo.models.model import Model
from octavo.models.registry import GGUF_ARCHITECTURES, HUGGING_FACE_ARCHITECTURES
from octavo.weights.formats import FORMATS
from octavo.weights.weight import Weight
from tests.models.tiny_llama import Arrays, ArraySource, make_arrays, make_config

CONFIG = make_config(attention_bias=True)


@pytest.fixture
def arrays() -> Arrays:
    return make_arrays(CONFIG)


def load(arrays: Arrays) -> Model:
    return load_model(ArraySource(arrays), spec_from_config(CONFIG, "tiny"))


def test_every_weight_is_taken_once(arrays: Arrays) -> None:
    weights = load(arrays).weights
    assert sorted(weight.name for weight in weights) == sorted(arrays)


def test_every_layer_keeps_the_keys_and_values_of_the_spec(arrays: Arrays) -> None:
    model = load(arrays)
    assert model.cache_specs() == (FullAttentionCache(num_kv_heads=2, head_size=8),) * model.num_layers


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.1.self_attn.k_proj.bias",
        "model.norm.weight",
        "lm_head.weight",
    ],
)
def test_missing_tensor_is_named(name: str, arrays: Arrays) -> None:
    del arrays[name]
    with pytest.raises(WeightError, match=name):
        load(arrays)


@pytest.mark.parametrize("name", sorted(make_arrays(CONFIG)))
def test_tensor_of_another_shape_is_named_with_both_shapes(name: str, arrays: Arrays) -> None:
    shape = arrays[name].shape
    wrong = (shape[0] + 1, *shape[1:])
    arrays[name] = np.zeros(wrong, np.float32)
    with pytest.raises(WeightError) as caught:
        load(arrays)
    assert all(part in str(caught.value) for part in (name, str(shape), str(wrong)))


def test_tensor_without_a_place_is_named(arrays: Arrays) -> None:
    arrays["model.layers.0.self_attn.q_norm.weight"] = np.ones(8, np.float32)
    with pytest.raises(WeightError, match=r"model\.layers\.0\.self_attn\.q_norm\.weight"):
        load(arrays)


def test_tables_that_follow_from_the_config_are_passed_over(arrays: Arrays) -> None:
    arrays["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    load(arrays)


def test_tied_head_is_the_embedding_even_when_the_file_has_a_copy(arrays: Arrays) -> None:
    spec = dataclasses.replace(spec_from_config(CONFIG, "tiny"), tied_head=True)
    model = load_model(ArraySource(arrays), spec)
    assert "lm_head.weight" not in {weight.name for weight in model.weights}


def test_tensor_in_a_format_that_cannot_be_read_is_named_with_what_can(arrays: Arrays) -> None:
    source = ArraySource(arrays)
    name = "model.layers.0.mlp.up_proj.weight"
    data = np.zeros((80, 50), np.uint8)
    source._weights[name] = Weight(name, (80, 48), FORMATS["IQ1_S"], data)
    with pytest.raises(UnsupportedError, match=rf"^.*{name}.*IQ1_S.*supported: .*Q4_K.*$"):
        load_model(source, spec_from_config(CONFIG, "tiny"))


@pytest.mark.parametrize("name", sorted({*GGUF_ARCHITECTURES.values(), *HUGGING_FACE_ARCHITECTURES.values()}))
def test_a_family_is_named_only_by_its_module_and_the_registry(name: str) -> None:
    root = Path(octavo.__file__).parent
    naming = re.compile(rf"""["']{name}["']|models\.{name}\b|from octavo\.models import .*\b{name}\b""")
    sources = (
        path
        for package in ("models", "backends", "engine", "worker")
        for path in root.glob(f"{package}/**/*.py")
    )
    found = {path.relative_to(root).as_posix() for path in sources if naming.search(path.read_text())}
    assert found == {f"models/{name}.py", "models/registry.py"}


def test_a_family_is_imported_only_when_one_of_its_models_is_loaded() -> None:
    code = "import sys, octavo.models.registry; assert 'octavo.models.llama' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.getcwd()})
