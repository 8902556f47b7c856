from __future__ import annotations

import errno
from typing import Any

import pytest

from octavo.cli.flags import (
    SAMPLING_DEFAULTS,
    SAMPLING_FLAGS,
    describe_error,
    sampling_params,
    spell_flag,
)
from octavo.config import EngineConfig, settings
from octavo.errors import CapacityError, ConfigError, OctavoError, RequestError, WeightError
from octavo.frontend.llm_engine import LLMEngine
from octavo.types.params import SamplingParams
from octavo.types.rules import field_rules
from tests.scripted_program import Octavo, ScriptedCore


@pytest.mark.parametrize("command", ["run", "chat"])
def test_every_setting_of_the_engine_is_a_flag_with_its_help(octavo: Octavo, command: str) -> None:
    text = " ".join(octavo(command, "--help").stdout.split())
    for name, setting in settings().items():
        if name != "model":
            assert f"{spell_flag(name)} " in text
            assert " ".join(setting.field.metadata["help"].split()) in text.replace("- ", "-")


def test_every_sampling_flag_is_shown_with_its_help(octavo: Octavo) -> None:
    text = " ".join(octavo("run", "--help").stdout.split())
    helps = {rule.name: rule.help for rule in field_rules(SamplingParams)}
    for name in SAMPLING_FLAGS:
        assert f"{spell_flag(name)} " in text
        assert helps[name] in text


def test_defaults_are_shown(octavo: Octavo) -> None:
    text = " ".join(octavo("run", "--help").stdout.split())
    assert "most tokens that a step computes [default: 2048]" in text


def test_without_flags_the_engine_has_its_defaults(octavo: Octavo, core: ScriptedCore) -> None:
    octavo("run", "smollm2", "Hi")
    assert core.configs == [EngineConfig()]


ENGINE_FLAGS: list[tuple[list[str], str, Any]] = [
    (["--max-num-seqs", "4"], "max_num_seqs", 4),
    (["--max-model-len", "4k"], "max_model_len", 4000),
    (["--max-model-len", "auto"], "max_model_len", "auto"),
    (["--kv-cache-memory", "512MiB"], "kv_cache_memory", 512 * 2**20),
    (["--memory-utilization", "0.25"], "memory_utilization", 0.25),
    (["--watermark", "1e-1"], "watermark", 0.1),
    (["--no-enable-prefix-caching"], "enable_prefix_caching", False),
    (["--enable-chunked-prefill"], "enable_chunked_prefill", True),
    (["--scheduling-policy", "priority"], "scheduling_policy", "priority"),
    (["--long-prefill-token-threshold", "0"], "long_prefill_token_threshold", 0),
    (["--backend", "reference"], "backend", "reference"),
    (["--threads", "3"], "threads", 3),
    (["--kv-cache-dtype", "fp8_e4m3"], "kv_cache_dtype", "fp8_e4m3"),
]


def test_weights_of_tenants_are_a_text_of_pairs(octavo: Octavo, core: ScriptedCore) -> None:
    octavo("run", "smollm2", "Hi", "--scheduling-policy", "fair", "--tenant-weights", "alice=2,bob=0.5")
    assert core.configs[0].scheduler.tenant_weights == {"alice": 2, "bob": 0.5}
    assert "--tenant-weights NAME=NUMBER,..." in octavo("run", "--help").stdout


@pytest.mark.parametrize(("arguments", "name", "value"), ENGINE_FLAGS)
def test_engine_flags_reach_the_configuration(
    octavo: Octavo, core: ScriptedCore, arguments: list[str], name: str, value: Any
) -> None:
    assert octavo("run", "smollm2", "Hi", *arguments).exit_code == 0
    assert core.configs == [EngineConfig.from_settings(**{name: value})]


SAMPLING_ARGUMENTS: list[tuple[list[str], str, Any]] = [
    (["--max-tokens", "3"], "max_tokens", 3),
    (["--temperature", "0.5"], "temperature", 0.5),
    (["--top-p", "0.9"], "top_p", 0.9),
    (["--top-k", "40"], "top_k", 40),
    (["--min-p", "0.05"], "min_p", 0.05),
    (["--seed", "7"], "seed", 7),
    (["--stop", "x", "--stop", "y"], "stop", ("x", "y")),
    (["--stop-token-ids", "5"], "stop_token_ids", (5,)),
    (["--ignore-eos"], "ignore_eos", True),
    (["--no-skip-special-tokens"], "skip_special_tokens", False),
]


@pytest.mark.parametrize(("arguments", "name", "value"), SAMPLING_ARGUMENTS)
def test_sampling_flags_reach_the_request(
    octavo: Octavo, core: ScriptedCore, arguments: list[str], name: str, value: Any
) -> None:
    assert octavo("run", "smollm2", "Hi", *arguments).exit_code == 0
    assert getattr(core.requests[0].sampling_params, name) == value


def test_without_flags_sampling_has_its_defaults_but_for_those_of_the_command_line() -> None:
    defaults = {name: getattr(SamplingParams(), name) for name in SAMPLING_FLAGS}
    assert sampling_params(defaults | SAMPLING_DEFAULTS) == SamplingParams(max_tokens=None, temperature=0)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--max-num-seqs", "0"], "--max-num-seqs is 0; it must be"),
        (["--max-num-seqs", "many"], "--max-num-seqs is 'many'; it must be a whole number"),
        (
            ["--kv-cache-memory", "lots"],
            "--kv-cache-memory is 'lots'; it must be a whole number",
        ),
        (["--scheduling-policy", "luck"], "'--scheduling-policy': 'luck' is not one of"),
        (["--memory-utilization", "2"], "--memory-utilization is 2.0; it must be"),
        (["--memory-utilization", "half"], "--memory-utilization is 'half'; it must be a number"),
        (["--tenant-weights", "a=2"], "--tenant-weights is {'a': 2.0}, but under the fcfs policy"),
        (["--top-p", "5"], "--top-p is 5.0; it must be"),
        (["--max-tokens", "0"], "--max-tokens is 0; it must be"),
        (["--seed", str(2**64)], "--seed is"),
        (["--stop", ""], "--stop[0] is ''"),
        (["--max-num-seqs", "99999999999999"], "--max-num-seqs is 99999999999999; it must be"),
        (["--kv-cache-memory", "9" * 400], "--kv-cache-memory is '999"),
        (["--tokenizer", ""], "--tokenizer is empty"),
        (["--chat-template", ""], "--chat-template is empty"),
        (["--revision", ""], "--revision is empty"),
        (["--kv-cache-memory", ""], "--kv-cache-memory is empty"),
    ],
)
def test_a_bad_value_is_a_usage_error_that_names_the_flag(
    octavo: Octavo, core: ScriptedCore, arguments: list[str], complaint: str
) -> None:
    result = octavo("run", "smollm2", "Hi", *arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert core.configs == []  # nothing was loaded to find out


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ConfigError("max_model_len is 9; tiny has 5"), "--max-model-len is 9; tiny has 5"),
        (CapacityError("no room; set kv_cache_memory"), "no room; set --kv-cache-memory"),
        (RequestError("stop is ''; the stop must be a text"), "--stop is ''; the stop must be a text"),
        (ConfigError("model is ''; see max_num_seqs=4"), "model is ''; see --max-num-seqs=4"),
        (WeightError("the key block_size is missing"), "the key block_size is missing"),
        (OSError(errno.ENOSPC, "No space left"), "input or output failed: No space left"),
        (OSError(errno.ENOENT, "No such file", "a/b"), "a/b: No such file"),
        (OSError("cannot seek"), "cannot seek"),
    ],
)
def test_errors_are_described_in_the_words_of_the_command_line(
    error: OctavoError | OSError, shown: str
) -> None:
    assert describe_error(error) == shown


@pytest.mark.parametrize(
    "error", [ConfigError("max_model_len is 9"), CapacityError("too much: kv_cache_memory")]
)
def test_what_is_wrong_only_when_the_model_is_loaded_names_the_flag(
    octavo: Octavo, monkeypatch: pytest.MonkeyPatch, error: OctavoError
) -> None:
    def from_config(config: EngineConfig) -> None:
        raise error

    monkeypatch.setattr(LLMEngine, "from_config", from_config)
    result = octavo("run", "smollm2", "Hi")
    assert result.exit_code == 1
    assert result.stderr == f"octavo: error: {describe_error(error)}\n"
    assert "--" in result.stderr
