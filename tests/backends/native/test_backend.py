"""The native backend with whole models, against the reference backend and against itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.backends.native import library
from octavo.backends.native.backend import NativeBackend
from octavo.backends.native.kv_cache import KVType
from octavo.backends.native.library import choose_instruction_set, load_library, make_device
from octavo.backends.native.sampling import NativeSampler
from octavo.errors import CapacityError, ConfigError, UnsupportedError
from octavo.models.model import Model
from octavo.types.kv import FullAttentionSpec, KVCacheConfig, KVCacheGroup
from tests.backends.steps import Request, cache_config, run_steps, whole_prompt_logits
from tests.models.tiny_llama import make_config, make_model
from tests.native import make_backend

TOKENS = np.random.default_rng(1).integers(0, 101, 150)


@pytest.fixture(scope="module")
def model() -> Model:
    return make_model(make_config(attention_bias=True, mlp_bias=True, head_dim=16))


def loaded(device: Any, model: Model, kv_type: KVType = "bf16") -> NativeBackend:
    backend = NativeBackend(device, NativeSampler(device, None), kv_type)
    backend.load_model(model)
    return backend


# What the cache rounds to has 8, 24 or 4 significant bits; two layers of it are seen in logits of about 10.
@pytest.mark.parametrize(("kv_type", "tolerance"), [("f32", 2e-5), ("bf16", 2e-2), ("fp8_e4m3", 3e-1)])
def test_logits_are_those_of_the_reference(
    device: Any, model: Model, kv_type: KVType, tolerance: float
) -> None:
    reference = make_backend("reference")
    reference.load_model(model)
    expected = whole_prompt_logits(reference, model, TOKENS)
    actual = whole_prompt_logits(loaded(device, model, kv_type), model, TOKENS)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("kv_type", ["f32", "bf16", "fp8_e4m3"])
def test_threads_and_chunks_leave_no_trace(devices: dict[int, Any], model: Model, kv_type: KVType) -> None:
    results = []
    for device in devices.values():
        backend = loaded(device, model, kv_type)
        results.append(whole_prompt_logits(backend, model, TOKENS))
        backend.allocate_kv_cache(cache_config(backend, model, 16, 12))
        request = Request(TOKENS, np.arange(11, 0, -1, dtype=np.int32))
        steps = [{0: 1}] * 20 + [{0: 7}] * 10 + [{0: 60}]
        results.append(run_steps(backend, [request], steps, 16)[0])
    assert all(np.array_equal(each, results[0]) for each in results)


def test_logits_of_one_call_survive_the_next(device: Any, model: Model) -> None:
    """As when prompt logprobs are gathered before the step's own logits are sampled from."""
    backend = loaded(device, model)
    hidden = np.random.default_rng(0).standard_normal((20, 48), dtype=np.float32)
    first = backend.compute_logits(hidden, np.arange(10))
    copy = first.copy()
    backend.compute_logits(hidden, np.arange(10, 20))
    assert np.array_equal(first, copy)


def test_a_cache_that_does_not_fit_is_refused_with_its_size(device: Any, model: Model) -> None:
    backend = loaded(device, model)
    spec = FullAttentionSpec(16, 8, 128, backend.kv_head_bytes(128))
    config = KVCacheConfig(2**30, (KVCacheGroup(spec, tuple(range(2000))),))
    with pytest.raises(CapacityError, match=rf"{config.total_bytes / 2**20:.0f} MiB"):
        backend.allocate_kv_cache(config)


# ------------------------------------------------------------ which backend is taken


def generate(model: Path, **settings: Any) -> list[int]:
    llm = LLM(str(model), kv_cache_memory="8MiB", **settings)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    return llm.generate("Hello", params, use_tqdm=False)[0].outputs[0].token_ids


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError("there is none")

    monkeypatch.setattr(library.importlib, "import_module", missing)


def test_auto_is_native_where_it_can_be(
    device: Any, tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert generate(tiny_model) == generate(tiny_model, backend="native")
    assert caplog.messages == []


def test_auto_falls_back_with_one_warning_that_says_why(
    no_library: None, tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert generate(tiny_model) == generate(tiny_model, backend="reference")
    (warning,) = caplog.messages
    assert "slow reference backend, because the native backend is not built here (there is none)" in warning


def test_native_is_an_error_where_it_cannot_be(no_library: None, tiny_model: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"not built here"):
        generate(tiny_model, backend="native")


def test_a_cache_that_only_native_kernels_have_is_no_reason_to_ignore_the_wish(
    no_library: None, tiny_model: Path
) -> None:
    with pytest.raises(ConfigError, match=r"kv_cache_dtype is bf16; the reference backend has only f32"):
        generate(tiny_model, kv_cache_dtype="bf16")


def test_the_fastest_instruction_set_is_taken_unless_one_is_forced() -> None:
    usable = ["portable", "avx2", "avx512"]
    assert choose_instruction_set(usable, None) == choose_instruction_set(usable, "") == "avx512"
    assert choose_instruction_set(usable, "portable") == "portable"
    with pytest.raises(ConfigError, match=r"OCTAVO_NATIVE is 'amx'; usable .* portable, avx2, avx512"):
        choose_instruction_set(usable, "amx")


def test_the_environment_forces_an_instruction_set(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slowest = load_library().usable_instruction_sets()[0]
    monkeypatch.setenv("OCTAVO_NATIVE", slowest)
    assert make_device(1).instruction_set == slowest


@pytest.mark.parametrize("num_threads", [0, 100_000])
def test_a_number_of_threads_that_no_engine_has_is_a_wrong_setting(device: Any, num_threads: int) -> None:
    with pytest.raises(ConfigError, match=f"threads must be from 1 to 1024, not {num_threads}"):
        make_device(num_threads)
