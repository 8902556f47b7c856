"""Settings: what is refused, in which words, and what a text may stand for."""

from __future__ import annotations

import re
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
        ("max_num_seqs", "2.5", r"max_num_seqs is '2\.5'; it must be a whole number"),
        ("watermark", "much", "watermark is 'much'; it must be a number of at least 0 and at most 0.9"),
        ("watermark", "0.95", "watermark is 0.95; it must be a number of at least 0 and at most 0.9"),
        ("priority_aging_s", "5m", "priority_aging_s is '5m'; it must be a number of at least 0"),
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
        ("max_model", 3, r"there is no setting 'max_model'; did you mean max_model_len\?"),
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
        ("4.0", 4),
    ],
)
def test_numbers_may_have_units(text: str, number: int) -> None:
    assert EngineConfig.from_settings(kv_cache_memory=text).cache.kv_cache_memory == number


@pytest.mark.parametrize(("text", "number"), [("0.1", 0.1), ("1e-3", 0.001), ("0", 0.0)])
def test_fractions_may_be_texts(text: str, number: float) -> None:
    assert EngineConfig.from_settings(watermark=text).scheduler.watermark == number


def fair(weights: Any) -> Any:
    """What becomes of weights that are given under the fair policy."""
    config = EngineConfig.from_settings(scheduling_policy="fair", tenant_weights=weights)
    return config.scheduler.tenant_weights


@pytest.mark.parametrize(
    ("given", "weights"),
    [
        (" alice=2, bob = 0.5,a=b=1e-3,", {"alice": 2.0, "bob": 0.5, "a=b": 0.001}),
        ({"alice": 2, "a,b=c": 0.5}, {"alice": 2, "a,b=c": 0.5}),
        ("", {}),
        ({}, {}),
        (None, None),
    ],
)
def test_tenant_weights_may_be_a_mapping_or_a_text(given: Any, weights: Any) -> None:
    assert fair(given) == weights


def test_tenant_weights_are_copied() -> None:
    given = {"alice": 2.0}
    weights = fair(given)
    given["alice"] = 0.0
    assert weights == {"alice": 2.0}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("bob=1,alice", "holds {'': 'alice'}"),
        ("bob=1,alice=", "holds {'alice': ''}"),
        ("bob=1,alice=two", "holds {'alice': 'two'}"),
        ("bob=1,alice=0", "holds {'alice': 0.0}"),
        ("bob=1,alice=-1", "holds {'alice': -1.0}"),
        ("bob=1,alice=nan", "holds {'alice': nan}"),
        ("bob=1,a=1e9", "holds {'a': 1000000000.0}"),
        ("bob=1,=2", "holds {'': 2.0}"),
        ("bob=1,bob=3", "is 'bob=1,bob=3'"),
        ({"bob": 1, "alice": "2"}, "holds {'alice': '2'}"),
        ({"bob": 1, "alice": True}, "holds {'alice': True}"),
        ({"bob": 1, 7: 2.0}, "holds {7: 2.0}"),
        ({"bob": 1, "": 2.0}, "holds {'': 2.0}"),
        (["bob"], r"is ['bob']"),
        (2, "is 2"),
    ],
)
def test_the_message_names_the_tenant_weights_that_are_refused(given: Any, named: str) -> None:
    allowed = "numbers of at least 0.001 and at most 1000000 by name, each name once, like alice=2,bob=0.5"
    with pytest.raises(ConfigError, match=re.escape(f"tenant_weights {named}; it must be {allowed}")):
        fair(given)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_tenant_weights_without_the_fair_policy_are_refused(policy: str) -> None:
    refused = f"is {{'alice': 2}}, but under the {policy} policy .* set scheduling_policy to fair"
    with pytest.raises(ConfigError, match=refused):
        EngineConfig.from_settings(scheduling_policy=policy, tenant_weights={"alice": 2})
    with pytest.raises(ConfigError, match=r"tenant_weights holds \{'alice': 0\}"):
        EngineConfig.from_settings(scheduling_policy=policy, tenant_weights={"alice": 0})


def test_a_retention_interval_without_prefix_caching_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"prefix_cache_retention_interval is 64, but .* turn it on"):
        EngineConfig.from_settings(prefix_cache_retention_interval=64, enable_prefix_caching=False)


def test_max_model_len_may_be_auto() -> None:
    assert EngineConfig.from_settings(max_model_len="auto").model.max_model_len == "auto"


def test_every_setting_has_a_help_text_and_an_allowed_default() -> None:
    EngineConfig()
    assert all(setting.field.metadata["help"] for setting in settings().values())


def test_a_configuration_made_from_its_sections_is_checked_too() -> None:
    from octavo.config import CacheConfig

    with pytest.raises(ConfigError, match="block_size is 0"):
        EngineConfig(cache=CacheConfig(block_size=0))


def test_the_reference_backend_takes_any_block_size() -> None:
    assert EngineConfig.from_settings(block_size=24, backend="reference").cache.block_size == 24


@pytest.mark.parametrize("dtype", ["bf16", "fp8_e4m3"])
def test_the_reference_backend_refuses_other_cache_types_than_f32(dtype: str) -> None:
    with pytest.raises(ConfigError, match=f"kv_cache_dtype is {dtype}; the reference backend has only f32"):
        EngineConfig.from_settings(kv_cache_dtype=dtype, backend="reference")
    EngineConfig.from_settings(kv_cache_dtype="f32", backend="reference")
