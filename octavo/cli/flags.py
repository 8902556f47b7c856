"""Makes flags from the engine's settings and the fields of `SamplingParams`, and values from given flags.

A flag has its field's name, annotation, default and help, so a new field in `octavo.config` needs no line
here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, NoneType
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import click

from octavo.config import EngineConfig, kinds_of, settings
from octavo.errors import CapacityError, ConfigError, OctavoError, RequestError
from octavo.types.params import SamplingParams
from octavo.types.rules import field_rules

# The fields that are useful for one answer on a terminal. Fields that need an optional feature, or that ask
# for other results than text, are left out.
SAMPLING_FLAGS = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
    "truncate_prompt_tokens",
)

# On a terminal the defaults are the whole answer and the most likely tokens. At temperature 1 small models
# often go wrong: asked for the capital of France, the default model begins with its most likely word in only
# one of six answers.
SAMPLING_DEFAULTS: Mapping[str, Any] = MappingProxyType({"max_tokens": None, "temperature": 0.0})

_Made = TypeVar("_Made")


class UnicodeText(click.types.StringParamType):
    """A text for the model. An argument with bytes that are not valid UTF-8 is refused."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return `value` unchanged. Ends with a usage error if it is not valid UTF-8."""
        try:
            value.encode()
        except UnicodeEncodeError:
            self.fail("it is not valid UTF-8", param, ctx)
        return str(value)


UNICODE_TEXT = UnicodeText()


class _Source(NamedTuple):
    """The facts of a field that make a flag."""

    name: str
    kinds: tuple[Any, ...]
    default: Any
    help: str


class FieldOption(click.Option):
    """A flag made from a field. `section` is its heading in the help."""

    def __init__(self, source: _Source, section: str, numbers_as_texts: bool = False) -> None:
        flag = spell_flag(source.name)
        attributes = _click_type(source.kinds, numbers_as_texts)
        super().__init__(
            [f"{flag}/--no-{flag[2:]}" if attributes["type"] is bool else flag, source.name],
            default=source.default,
            help=source.help,
            show_default=source.default is not False,
            **attributes,
        )
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help lists its own options first, and then the flags made from fields by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags, section by section."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record is not None:
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records, col_max=min(30, formatter.width // 2))


def engine_options() -> list[click.Parameter]:
    """A flag for every setting of the engine except the model, which is an argument of the commands."""
    return [
        FieldOption(
            _Source(name, setting.kinds, setting.field.default, setting.field.metadata["help"]),
            setting.section.capitalize() or "Engine",
            # The configuration reads numbers with units, and its errors are clearer than click's.
            numbers_as_texts=True,
        )
        for name, setting in settings().items()
        if name != "model"
    ]


def sampling_options() -> list[click.Parameter]:
    """A flag for each of SAMPLING_FLAGS."""
    rules = {rule.name: rule for rule in field_rules(SamplingParams)}
    hints = get_type_hints(SamplingParams)
    return [
        FieldOption(
            _Source(
                name,
                kinds_of(hints[name]),
                SAMPLING_DEFAULTS.get(name, rules[name].default),
                rules[name].help,
            ),
            "Sampling",
        )
        for name in SAMPLING_FLAGS
    ]


def engine_config(model: str, flags: Mapping[str, Any]) -> EngineConfig:
    """The configuration with the settings in `flags`. Raises click.UsageError, naming the flag."""
    chosen = {name: flags[name] for name in settings() if name in flags}
    for name, value in chosen.items():
        if value == "":
            raise click.UsageError(f"{spell_flag(name)} is empty; give it a value, or leave it out")
    return _made(lambda: EngineConfig.from_settings(model=model, **chosen))


def sampling_params(flags: Mapping[str, Any]) -> SamplingParams:
    """The sampling parameters in `flags`. Raises click.UsageError, naming the flag."""
    return _made(lambda: SamplingParams(**{name: flags[name] for name in SAMPLING_FLAGS}))


def spell_flag(name: str) -> str:
    """The flag of a field: `max_num_seqs` is `--max-num-seqs`."""
    return "--" + name.replace("_", "-")


def describe_error(error: OctavoError | OSError) -> str:
    """The error's message, with settings spelled as flags."""
    if isinstance(error, (ConfigError, RequestError, CapacityError)):
        return _with_flags(str(error))
    if isinstance(error, OctavoError) or error.strerror is None:
        return str(error)
    return f"{error.filename or 'input or output failed'}: {error.strerror}"


def _made(make: Callable[[], _Made]) -> _Made:
    try:
        return make()
    except (ConfigError, RequestError) as error:
        raise click.UsageError(describe_error(error)) from error


def _with_flags(message: str) -> str:
    """`message` with fields spelled as flags. A name without "_" is replaced only as the first word."""
    names = {*settings(), *SAMPLING_FLAGS} - {"model"}
    unmistakable = "|".join(name for name in names if "_" in name)
    return re.sub(
        rf"\A({'|'.join(names)})\b|\b({unmistakable})\b", lambda match: spell_flag(match[0]), message
    )


def _click_type(kinds: tuple[Any, ...], numbers_as_texts: bool) -> dict[str, Any]:
    """click's arguments for a field of these types. None in `kinds` means "not given", and is no type."""
    for kind in (int, float):
        if kind in kinds:
            return {"type": str if numbers_as_texts else kind, "metavar": "NUMBER"}
    (kind,) = (kind for kind in kinds if kind is not NoneType)
    if get_origin(kind) is Literal:
        return {"type": click.Choice(get_args(kind))}
    if get_origin(kind) is Mapping:
        return {"type": str, "metavar": "NAME=NUMBER,..."}
    if get_origin(kind) is Sequence:
        (item,) = get_args(kind)
        return {"type": UNICODE_TEXT if item is str else item, "multiple": True}
    return {"type": kind}
