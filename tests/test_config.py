"""Settings: what is refused, in which words, and what a text may stand for."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.config import EngineConfig, settings
from octavo.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("max_num_seqs", 0, "max_num_seqs is 0; it must be a whole number of at least 1"),
        ("max_num_seqs", True, "max_num_seqs is True; it must be a whole number"),
        ("max_num_seqs", 2.0, "max_num_seqs is 2.0; it must be a whole number"),
        ("max_model_len", "long", "must be a whole number of at least 2 .*, or auto"),
        ("kv_cache_memory", "auto", "kv_cache_memory is 'auto'; .*32k and 2GiB are numbers"),
        ("memory_utilization", float("nan"), "memory_utilization is nan; .*at least 0.001 and at most 1"),
        ("enable_prefix_caching", "no", "enable_prefix_caching is 'no'; it must be true or false"),
        ("allow_special_tokens_in_content", "false", "must be true or false"),
        ("enable_chunked_prefill", 1, "must be true or false"),
        ("kv_cache_memory", "9" * 18, r"kv_cache_memory is 9+; .*at least 1 and at most 9007199254740992"),
        ("kv_cache_memory", "9" * 29 + ".5GiB", "at least 1 and at most 9007199254740992"),
        ("kv_cache_memory", "9" * 5000, "at least 1 and at most 9007199254740992"),
        ("max_num_seqs", 10**30, "at least 1 and at most 65536"),
        ("max_model_len", 1, "at least 2"),
        ("model", None, "model is None; it must be a text"),
        ("chat_template", b"x", "it must be a text"),
        ("revision", 3, "revision is 3; it must be a text"),
        ("scheduling_policy", "luck", "scheduling_policy is 'luck'; it must be fcfs or priority"),
        ("backend", None, "backend is None; it must be auto or native or reference"),
        ("threads", 0, "threads is 0; it must be a whole number of at least 1"),
        ("kv_cache_dtype", "int4", "it must be auto or bf16 or f32 or fp8_e4m3"),
        ("block_size", 24, "block_size is 24; it must be a multiple of 16, unless backend is reference"),
        ("max_sequences", 3, "there is no setting 'max_sequences'; did you mean .*max_num_seqs"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_with_what_is(name: str, value: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        EngineConfig.from_settings(**{name: value})


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4096", 4096),
        ("32k", 32_000),
        ("2GiB", 2 * 2**30),
        ("1.5 MiB", 3 * 2**19),
        ("512m", 512_000_000),
        ("0.5TiB", 2**39),
    ],
)
def test_numbers_may_have_units(text: str, number: int) -> None:
    assert EngineConfig.from_settings(kv_cache_memory=text).cache.kv_cache_memory == number


def test_auto_is_a_context_length_and_stays_a_word() -> None:
    assert EngineConfig.from_settings(max_model_len="auto").model.max_model_len == "auto"


def test_every_setting_has_a_help_text_and_an_allowed_default() -> None:
    EngineConfig()
    assert all(setting.field.metadata["help"] for setting in settings().values())


def test_a_configuration_made_without_flat_names_is_checked_too() -> None:
    from octavo.config import CacheConfig

    with pytest.raises(ConfigError, match="block_size is 0"):
        EngineConfig(cache=CacheConfig(block_size=0))


def test_blocks_of_the_reference_backend_hold_any_number_of_tokens() -> None:
    assert EngineConfig.from_settings(block_size=24, backend="reference").cache.block_size == 24


@pytest.mark.parametrize("dtype", ["bf16", "fp8_e4m3"])
def test_the_reference_backend_has_no_narrow_cache(dtype: str) -> None:
    with pytest.raises(ConfigError, match=f"kv_cache_dtype is {dtype}; the reference backend has only f32"):
        EngineConfig.from_settings(kv_cache_dtype=dtype, backend="reference")
    EngineConfig.from_settings(kv_cache_dtype="f32", backend="reference")
