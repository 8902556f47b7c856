"""All settings of the engine, with their defaults and meanings. Defaults are defined only here.

A configuration is frozen, and is validated as a whole when an `EngineConfig` is made. Command-line flags are
made from the names, types and `help` of these fields (`max_num_seqs` becomes `--max-num-seqs`). A new setting
needs a field here and its type in `octavo.settings`. Values that are found at start-up (the model's shape,
the number of blocks) are not configuration: they are in `ModelSpec` and `KVCacheConfig`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from decimal import Decimal
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, Unpack, get_args, get_origin, get_type_hints

from octavo.errors import ConfigError, suggest
from octavo.settings import Settings

DEFAULT_MODEL = "smollm2"

AUTO: Literal["auto"] = "auto"

KERNEL_BLOCK = 16  # tokens; the native kernels read the KV cache in units of this size

MOST = 2**53  # the upper limit of a setting that names no other

_NUMBERS_BY_NAME = Mapping[str, float]  # the type of a setting such as `tenant_weights`

_NUMBER = re.compile(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*([kmgt]i?)?b?\s*")
_UNITS = {"": 1} | {
    letter + i: (1024 if i else 1000) ** power
    for power, letter in enumerate("kmgt", start=1)
    for i in ("", "i")
}


def _setting(default: Any, help: str, least: float = 0, most: float = MOST) -> Any:
    """Return a field with the help text of its flag, and the least and greatest number that it may hold."""
    return field(default=default, metadata={"help": help, "least": least, "most": most})


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model to load, and how to read it."""

    model: str = _setting(
        DEFAULT_MODEL, "an alias, a path to a GGUF file or Hugging Face folder, or a hub id org/name"
    )
    revision: str | None = _setting(None, "branch, tag or commit of a hub id; default: main")
    tokenizer: str | None = _setting(
        None, "folder, GGUF file or hub id to read the tokenizer from; default: the model's own"
    )
    chat_template: str | None = _setting(
        None, "a Jinja chat template, or a file that holds one; default: the model's own"
    )
    allow_special_tokens_in_content: bool = _setting(
        False,
        "read the names of control tokens in chat messages as control tokens (unsafe: a user can then forge "
        "messages of others)",
    )
    max_model_len: int | Literal["auto"] | None = _setting(
        None,
        "most tokens of a request, prompt and output together; auto = as many as the KV cache can hold; "
        "default: the model's context length",
        least=2,
    )
    max_logprobs: int = _setting(20, "most logprobs that a request may ask for; -1 = no limit", least=-1)
    logprobs_mode: Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"] = _setting(
        "raw_logprobs",
        "what logprobs report: log-probabilities or logits, before sampling parameters change them (raw) or "
        "after (processed)",
    )


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = _setting(
        32, "tokens in a block of the KV cache: a multiple of 16, except with the reference backend", 1, 2**16
    )
    kv_cache_dtype: Literal["auto", "bf16", "f32", "fp8_e4m3"] = _setting(
        AUTO, "type of the stored keys and values; auto = bf16, or f32 with the reference backend"
    )
    enable_prefix_caching: bool = _setting(
        True, "keep the KV of past prompts, and reuse it for prompts that begin with the same tokens"
    )
    prefix_cache_retention_interval: int | None = _setting(
        None,
        "sliding-window layers: keep the window cached only at every N tokens and at the end of each prompt "
        "(0 = at the end of each prompt only); default: keep all",
    )
    kv_cache_memory: int | None = _setting(
        None,
        "size of the KV cache in bytes, or with a unit, such as 2GiB; default: see memory_utilization",
        least=1,
    )
    memory_utilization: float = _setting(
        0.5, "share of the free memory that the KV cache takes when kv_cache_memory is not given", 0.001, 1
    )
    num_blocks_override: int | None = _setting(
        None, "exact number of blocks in the KV cache, whatever memory is free (for tests)", least=2
    )

    @property
    def size_setting(self) -> str:
        """The setting that makes the cache larger."""
        return "kv_cache_memory" if self.num_blocks_override is None else "num_blocks_override"


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How requests share steps."""

    max_num_batched_tokens: int = _setting(2048, "most tokens that a step computes", least=1)
    max_num_seqs: int = _setting(256, "most requests that run at the same time", least=1, most=2**16)
    enable_chunked_prefill: bool = _setting(True, "compute a long prompt in chunks, over several steps")
    long_prefill_token_threshold: int | None = _setting(
        None,
        "most prompt tokens of one request in a step while other requests wait for tokens in it; 0 = no "
        "limit; default: half of max_num_batched_tokens",
    )
    max_num_partial_prefills: int | None = _setting(
        None, "most requests whose prompts are partly computed at the same time; default: no limit", least=1
    )
    prefill_schedule_interval: int = _setting(
        1, "compute prompts only in every Nth step while other requests decode; 1 = in every step", 1, 2**16
    )
    watermark: float = _setting(
        0.0, "share of the KV cache that must stay free when a waiting request is admitted", most=0.9
    )
    scheduling_policy: Literal["fcfs", "priority", "fair"] = _setting(
        "fcfs",
        "which request goes first: fcfs = the one that arrived first; priority = the one with the lowest "
        "priority number; fair = tenants get equal shares, or those of tenant_weights",
    )
    priority_aging_s: float = _setting(
        300.0,
        "priority policy: after this many seconds of waiting a request counts as one priority level more "
        "urgent, so that none waits for ever; 0 = waiting does not count",
    )
    tenant_weights: Mapping[str, float] | None = _setting(
        None,
        "fair policy: the share of each tenant, such as alice=2,bob=0.5; a tenant that is not named has 1",
        least=0.001,
        most=10**6,
    )
    enable_cascade_attention: bool = _setting(
        True, "when all running requests begin with the same blocks, attend to these once for all of them"
    )
    pipeline_depth: int = _setting(
        1, "steps in flight at the same time; with 2, the next step is planned while one runs", 1, 8
    )


@dataclass(frozen=True, slots=True)
class ObservationConfig:
    """Statistics and events that the engine reports while it runs."""

    log_stats: bool = _setting(
        False, "log throughput, load and cache hits every 10 seconds, at the level info"
    )
    kv_events_endpoint: str | None = _setting(
        None,
        "ZeroMQ address at which to publish changes of the prefix cache, such as tcp://127.0.0.1:5557; "
        "default: publish nothing",
    )
    kv_events_replay_endpoint: str | None = _setting(
        None, "ZeroMQ address at which subscribers ask for events that they missed, or for the whole cache"
    )
    kv_events_topic: str = _setting("kv-events", "first frame of every message of the event stream")
    kv_events_buffer_steps: int = _setting(
        10_000, "number of past steps whose events can be replayed", least=1, most=2**24
    )
    kv_events_hwm: int = _setting(
        100_000, "messages that wait for a slow subscriber before further ones are dropped for it", 1, 2**24
    )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The whole configuration. Creating one validates it; raises ConfigError."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    observation: ObservationConfig = field(default_factory=ObservationConfig)
    backend: Literal["auto", "native", "reference"] = _setting(
        AUTO,
        "code that computes the model: native = C++ kernels; reference = numpy, slow, what tests compare "
        "with; auto = native if it can run this model",
    )
    threads: int | None = _setting(
        None,
        "threads of the native backend; default: one for each processor that this process may use",
        1,
        1024,
    )

    def __post_init__(self) -> None:
        for name, setting in settings().items():
            section = getattr(self, setting.section) if setting.section else self
            setting.check(name, getattr(section, name))
        self._check_backend()
        self._check_tenant_weights()
        self._check_retention()
        self._check_kv_events()

    def _check_backend(self) -> None:
        """Raise ConfigError for a KV cache that the backend cannot make."""
        if self.backend != "reference" and self.cache.block_size % KERNEL_BLOCK:
            raise ConfigError(
                f"block_size is {self.cache.block_size}; it must be a multiple of {KERNEL_BLOCK}, unless "
                "backend is reference"
            )
        if self.backend == "reference":
            self.require_reference_dtype()

    def _check_tenant_weights(self) -> None:
        """Raise ConfigError for tenant weights without the fair policy."""
        weights, policy = self.scheduler.tenant_weights, self.scheduler.scheduling_policy
        if weights is not None and policy != "fair":
            raise ConfigError(
                f"tenant_weights is {weights!r:.80}, but under the {policy} policy tenants have no "
                "shares; set scheduling_policy to fair, or leave this out"
            )

    def _check_retention(self) -> None:
        """Raise ConfigError for a retention interval without prefix caching."""
        interval = self.cache.prefix_cache_retention_interval
        if interval is not None and not self.cache.enable_prefix_caching:
            raise ConfigError(
                f"prefix_cache_retention_interval is {interval}, but nothing is cached with "
                "enable_prefix_caching off; turn it on, or leave this out"
            )

    def _check_kv_events(self) -> None:
        """Raise ConfigError for settings of KV events that have no effect."""
        endpoint, replay = self.observation.kv_events_endpoint, self.observation.kv_events_replay_endpoint
        if endpoint is not None and not self.cache.enable_prefix_caching:
            raise ConfigError(
                f"kv_events_endpoint is {endpoint!r}, but without enable_prefix_caching there are no events; "
                "set that too, or leave this out"
            )
        if replay is not None and endpoint is None:
            raise ConfigError(
                f"kv_events_replay_endpoint is {replay!r}, but no events are published; set "
                "kv_events_endpoint too, or leave this out"
            )

    def require_reference_dtype(self) -> None:
        """Raise ConfigError unless the reference backend has this kv_cache_dtype."""
        if self.cache.kv_cache_dtype not in (AUTO, "f32"):
            raise ConfigError(
                f"kv_cache_dtype is {self.cache.kv_cache_dtype}; the reference backend has only f32 (or auto)"
            )

    @classmethod
    def from_settings(cls, model: str = DEFAULT_MODEL, **given: Unpack[Settings]) -> EngineConfig:
        """Make a configuration from settings by name, such as `max_num_seqs=4`.

        A number may be a text, and a whole number may have a unit: `watermark="0.1"`, `max_model_len="32k"`,
        `kv_cache_memory="2GiB"`. A mapping may be a text too: `tenant_weights="alice=2,bob=0.5"`. Raises
        ConfigError, also for a name that is not a setting.
        """
        known = settings()
        sections: dict[str, dict[str, Any]] = {}
        for name, value in {"model": model, **given}.items():
            if name not in known:
                raise ConfigError(f"there is no setting {name!r}; {suggest(name, known)}")
            sections.setdefault(known[name].section, {})[name] = known[name].parse(value)
        own = sections.pop("", {})
        default = cls()
        return replace(
            default,
            **own,
            **{name: replace(getattr(default, name), **values) for name, values in sections.items()},
        )


class Setting(NamedTuple):
    """A setting: its section, its types, and the field with its limits."""

    section: str  # the field of EngineConfig that holds it; "" for EngineConfig itself
    kinds: tuple[Any, ...]  # its types; a Literal is one of them
    field: Field[Any]

    def parse(self, value: Any) -> Any:
        """Turn a text into the number or the mapping that it stands for, and copy a mapping. Return any other
        text or value as it is.
        """
        if _NUMBERS_BY_NAME in self.kinds:
            numbers = _numbers_by_name(value) if isinstance(value, str) else value
            return dict(numbers) if isinstance(numbers, Mapping) else numbers
        if not isinstance(value, str):
            return value
        if int in self.kinds:
            return _whole_number(value)
        return _number(value) if float in self.kinds else value

    def check(self, name: str, value: Any) -> None:
        """Raise ConfigError for a value that is not allowed. The message says which values are."""
        if any(self._allows(kind, value) for kind in self.kinds):
            return
        given = f"is {value!r:.80}"
        if _NUMBERS_BY_NAME in self.kinds and isinstance(value, Mapping):
            refused = {key: number for key, number in value.items() if not self._allows_entry(key, number)}
            given = f"holds {refused!r:.80}"
        raise ConfigError(f"{name} {given}; it must be {self._describe_allowed(value)}")

    def _allows(self, kind: Any, value: Any) -> bool:
        if get_origin(kind) is Literal:
            return value in get_args(kind)
        if kind == _NUMBERS_BY_NAME:
            return isinstance(value, Mapping) and all(map(self._allows_entry, value.keys(), value.values()))
        # In Python True is an int and 2 is not a float. Here True is no number, and 2 is allowed as a float.
        if type(value) is not kind and not (kind is float and type(value) is int):
            return False
        return (
            kind not in (int, float) or self.field.metadata["least"] <= value <= self.field.metadata["most"]
        )

    def _allows_entry(self, key: Any, number: Any) -> bool:
        return isinstance(key, str) and key != "" and self._allows(float, number)

    def _describe_allowed(self, value: Any) -> str:
        """Say in words which values are allowed. How much it says depends on the refused `value`."""
        least, most = self.field.metadata["least"], self.field.metadata["most"]
        too_large = isinstance(value, str) or (type(value) in (int, float) and value > most)
        limits = f" of at least {least}" + (f" and at most {most}" if most < MOST or too_large else "")
        units = " (4096, 32k and 2GiB are numbers)" if isinstance(value, str) else ""
        words = {
            bool: "true or false",
            str: "a text",
            int: f"a whole number{limits}{units}",
            float: f"a number{limits}",
            _NUMBERS_BY_NAME: f"numbers{limits} by name, each name once, like alice=2,bob=0.5",
        }
        kinds = [kind for kind in self.kinds if kind is not NoneType]
        return ", or ".join(words.get(kind) or " or ".join(get_args(kind)) for kind in kinds)


def _whole_number(text: str) -> int | str:
    """Read a number, with or without a unit. A text that is not a number is returned as it is."""
    match = _NUMBER.fullmatch(text.lower())
    if match is None:
        return text
    number = Decimal(match[1]) * _UNITS[match[2] or ""]
    return int(number) if match[2] or number == int(number) else text


def _number(text: str) -> float | str:
    """Read a number. A text that is not a number is returned as it is."""
    try:
        return float(text)
    except ValueError:
        return text


def _numbers_by_name(text: str) -> dict[str, float | str] | str:
    """Read `alice=2,bob=0.5` as a mapping. A text that holds a name twice is returned as it is."""
    pairs = [pair.rpartition("=") for pair in text.split(",") if pair.strip()]
    numbers = {name.strip(): _number(number) for name, _, number in pairs}
    return numbers if len(numbers) == len(pairs) else text


@functools.cache
def settings() -> Mapping[str, Setting]:
    """All settings by name, in the order of the fields."""
    found: dict[str, Setting] = {}
    for name, kind in get_type_hints(EngineConfig).items():
        section = name if is_dataclass(kind) else ""
        holder = kind if is_dataclass(kind) else EngineConfig
        hints = get_type_hints(holder)
        found |= {
            each.name: Setting(section, kinds_of(hints[each.name]), each)
            for each in fields(holder)
            if "help" in each.metadata
        }
    return MappingProxyType(found)


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """The types that an annotation allows: the members of a union, or the single type."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
