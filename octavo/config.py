"""Every setting of the engine, its default and its meaning; the only place where defaults live.

Configuration is frozen and is validated once, as a whole, by `EngineConfig`. Command-line flags are made from
these fields (`max_num_seqs` becomes `--max-num-seqs`), their types and their `help`. What start-up discovers
(the model's shape, the number of blocks) is not configuration: see `ModelSpec` and `KVCacheConfig`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from octavo.errors import ConfigError

DEFAULT_MODEL = "smollm2"

BackendName = Literal["reference"]
PolicyName = Literal["fcfs", "priority"]
LogprobsMode = Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]

_SIZE_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def _setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model, and how it is read."""

    model: str = _setting(
        DEFAULT_MODEL, "an alias, a path to a GGUF file or Hugging Face folder, or a hub id org/name"
    )
    revision: str | None = _setting(None, "branch, tag or commit of a hub id")
    tokenizer: str | None = _setting(
        None, "folder or GGUF file to take the tokenizer from, when not the model's own"
    )
    chat_template: str | None = _setting(None, "file with a Jinja chat template, or the template itself")
    allow_special_tokens_in_content: bool = _setting(
        False,
        "take the names of control tokens in chat messages for those tokens (unsafe: a user can forge turns)",
    )
    max_model_len: int | str | None = _setting(
        None,
        "most tokens of a sequence, prompt and output together; auto = what the cache can hold",
    )
    max_logprobs: int = _setting(20, "most logprobs a request may ask for; -1 = no limit")
    logprobs_mode: LogprobsMode = _setting(
        "raw_logprobs", "what logprobs are taken from: before or after penalties"
    )


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = _setting(16, "tokens a KV cache block holds")
    enable_prefix_caching: bool = _setting(True, "reuse the KV of equal prompt beginnings")
    kv_cache_memory: int | str | None = _setting(None, "memory of the KV cache, in bytes or as 512MiB, 2GiB")
    memory_utilization: float = _setting(
        0.5, "share of the free memory for the KV cache, when its size is not given"
    )
    num_blocks_override: int | None = _setting(
        None, "exact number of KV cache blocks, whatever the memory (for tests)"
    )


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How requests share steps."""

    max_num_batched_tokens: int = _setting(2048, "most tokens a step runs")
    max_num_seqs: int = _setting(256, "most requests that run at once")
    enable_chunked_prefill: bool = _setting(True, "let a long prompt be spread over several steps")
    long_prefill_token_threshold: int | None = _setting(
        None,
        "most tokens a request runs in a step others want a share of; default: half a step; 0 = no limit",
    )
    scheduling_policy: PolicyName = _setting(
        "fcfs", "who goes first: in order of arrival, or by the request's priority"
    )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The whole configuration. Creating one validates it; raises ConfigError."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    backend: BackendName = _setting(
        "reference", "what computes: reference (numpy, slow, the oracle of every test)"
    )

    def __post_init__(self) -> None:
        _validate(self)

    @classmethod
    def from_settings(cls, **settings: Any) -> EngineConfig:
        """A configuration from flat names (`max_num_seqs=4`), as `LLM(...)` and the command line give them.

        Sizes and lengths with suffixes become numbers. Raises ConfigError for a name that is no setting.
        """
        sections: dict[str, dict[str, Any]] = {}
        where = setting_sections()
        for name, value in settings.items():
            if name not in where:
                raise ConfigError(f"unknown setting {name!r}; the settings are {', '.join(sorted(where))}")
            sections.setdefault(where[name], {})[name] = _parse(name, value)
        own = sections.pop("", {})
        default = cls()
        return replace(
            default,
            **own,
            **{name: replace(getattr(default, name), **given) for name, given in sections.items()},
        )


def setting_sections() -> Mapping[str, str]:
    """Every setting's name → the section of EngineConfig that holds it; "" for EngineConfig itself."""
    sections = {"model": ModelConfig, "cache": CacheConfig, "scheduler": SchedulerConfig}
    found = {setting.name: name for name, section in sections.items() for setting in fields(section)}
    return {**found, "backend": ""}


def _parse(name: str, value: Any) -> Any:
    """A size or a length may come as a text: `2GiB`, `512M`, `32k`, `1000`. Raises ConfigError."""
    if not isinstance(value, str) or name not in ("kv_cache_memory", "max_model_len") or value == "auto":
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?)?b?\s*", value.lower())
    if not match:
        raise ConfigError(
            f"{name} is {value!r}; it must be a number, with k, M, G, KiB, MiB or GiB behind it if need be"
        )
    return int(float(match[1]) * _SIZE_UNITS[match[2] or ""])


def _validate(config: EngineConfig) -> None:
    model, cache, scheduler = config.model, config.cache, config.scheduler
    _require_choice("backend", config.backend, get_args(BackendName))
    _require_choice("scheduling_policy", scheduler.scheduling_policy, get_args(PolicyName))
    _require_choice("logprobs_mode", model.logprobs_mode, get_args(LogprobsMode))
    _require_int("block_size", cache.block_size, least=1)
    _require_int("max_num_batched_tokens", scheduler.max_num_batched_tokens, least=1)
    _require_int("max_num_seqs", scheduler.max_num_seqs, least=1)
    if scheduler.long_prefill_token_threshold is not None:
        _require_int("long_prefill_token_threshold", scheduler.long_prefill_token_threshold, least=0)
    _require_int("max_logprobs", model.max_logprobs, least=-1)
    if model.max_model_len not in (None, "auto"):
        _require_int("max_model_len", model.max_model_len, least=1, also="'auto'")
    if cache.kv_cache_memory is not None:
        _require_int("kv_cache_memory", cache.kv_cache_memory, least=1)
    if cache.num_blocks_override is not None:
        _require_int("num_blocks_override", cache.num_blocks_override, least=2)
    share = cache.memory_utilization
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise ConfigError(f"memory_utilization is {share!r}; it must be more than 0 and at most 1")


def _require_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(choices)}")


def _require_int(name: str, value: Any, least: int, also: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(
            f"{name} is {value!r}; it must be a whole number of at least {least}{also and ' or ' + also}"
        )
