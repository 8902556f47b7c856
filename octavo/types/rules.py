"""Rules that check the fields of users' requests, and report a wrong value in a whole sentence.

A `CheckedStruct` names a rule and a help text in each field's annotation, such as
`Annotated[int, checked(whole(1, 8), "…")]`. This module names no
particular field.
"""

from __future__ import annotations

import enum
import functools
import math
import re
import sys
import types
from collections.abc import Callable, Collection, Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple, NoReturn, get_args

import msgspec

from octavo.errors import RequestError, suggest

Rule = Callable[[str, Any], Any]  # (field, value given) → value to store; raises RequestError

MAX_NESTING = 64  # levels of lists and objects in JSON-like data
_MAX_COUNT = 2**31 - 1  # counts and ids end up in int32 arrays
_MAX_SHOWN = 80  # characters of a refused value that an error quotes


class FieldRule(NamedTuple):
    """Name, help text, rule and default of one field of a Struct. `nullable`: its type includes None."""

    name: str
    help: str
    rule: Rule
    default: Any
    nullable: bool


def checked(rule: Rule, help: str) -> msgspec.Meta:
    """Return the annotation of a field: `rule` checks its values, `help` describes it in one line."""
    return msgspec.Meta(description=help, extra={"rule": rule})


class _CheckedMeta(msgspec.StructMeta):
    """Checks the names of the given fields before msgspec does, because msgspec's error suggests no name."""

    def __call__(self, *args: Any, **given: Any) -> Any:
        for name in given:
            if name not in self.__struct_fields__:
                suggestion = suggest(name, self.__struct_fields__)
                raise RequestError(f"{self.__name__} has no field {_shown(name)}; {suggestion}", name)
        return super().__call__(*args, **given)


class CheckedStruct(msgspec.Struct, metaclass=_CheckedMeta, frozen=True):
    """A Struct whose fields are all annotated with `checked`. A field stores the result of its rule.

    None stands for the default of a field, unless the type of the field includes None. Creating a Struct
    raises RequestError for a wrong value or an unknown field. The error names the field.
    """

    def __post_init__(self) -> None:
        for field in field_rules(type(self)):
            value = getattr(self, field.name)
            if value is None:
                stored = None if field.nullable else field.default
            else:
                stored = field.rule(field.name, value)
            if stored is not value:
                msgspec.structs.force_setattr(self, field.name, stored)


@functools.cache
def field_rules(kind: type[CheckedStruct]) -> tuple[FieldRule, ...]:
    """Return the rules, help texts and defaults of a Struct's fields."""
    found = []
    for field in msgspec.structs.fields(kind):
        base, meta = get_args(field.type)
        nullable = types.NoneType in get_args(base)
        found.append(FieldRule(field.name, meta.description, meta.extra["rule"], field.default, nullable))
    return tuple(found)


def refuse(name: str, value: Any, allowed: str) -> NoReturn:
    """Raise the RequestError for a value that is not `allowed`. `name` begins with the field's name."""
    raise _error(name, f"is {_shown(value)}; it must be {allowed}")


def flag(name: str, value: Any) -> bool:
    """Rule: True or False. Numbers are refused."""
    if not isinstance(value, bool):
        refuse(name, value, "true or false")
    return value


def whole(
    least: int = 0, most: int = _MAX_COUNT, special: Mapping[int, int | None] = types.MappingProxyType({})
) -> Rule:
    """Rule: an integer from `least` to `most`, or one of the `special` ones, stored as what they map to."""
    outside = [value for value in special if not least <= value <= most]
    allowed = f"a whole number from {least} to {most}" + "".join(f", or {value}" for value in outside)

    def check(name: str, value: Any) -> int | None:
        if _is_number(value, Integral):
            number = int(value)
            if number in special:
                return special[number]
            if least <= number <= most:
                return number
        refuse(name, value, allowed)

    return check


def number(least: float, most: float = sys.float_info.max, *, above: bool = False) -> Rule:
    """Rule: a finite number of at least (or, with `above`, more than) `least` and at most `most`."""
    low = f"{'more than' if above else 'at least'} {least:g}"
    allowed = (
        f"a finite number, {low}" if most == sys.float_info.max else f"a number, {low} and at most {most:g}"
    )

    def check(name: str, value: Any) -> float:
        # NaN fails the comparison. So does an integer that is too large for float().
        if not _is_number(value, Real) or not least <= value <= most or (above and value == least):
            refuse(name, value, allowed)
        return float(value)

    return check


def one_of(kind: type[enum.Enum]) -> Rule:
    """Rule: a member of an enumeration, or a member's value."""
    allowed = "one of " + ", ".join(str(member.value) for member in kind)

    def check(name: str, value: Any) -> enum.Enum:
        try:
            return kind(value)
        except ValueError:
            refuse(name, value, allowed)

    return check


def text(*, blank: bool = True, forbidden: str | None = None) -> Rule:
    """Rule: non-empty text that UTF-8 can encode; `blank` = it may be white space alone."""
    allowed = "non-empty text" + ("" if blank else ", and more than white space")
    if forbidden is not None:
        allowed += f", without {forbidden!r}"

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or not (value if blank else value.strip()):
            refuse(name, value, allowed)
        if forbidden is not None and forbidden in value:
            refuse(name, value, allowed)
        if not _is_utf8(value):
            refuse(name, value, "text without lone surrogates")
        return value

    return check


def items(rule: Rule, *, least: int = 0, most: int = _MAX_COUNT, unique: bool = False) -> Rule:
    """Rule: `least` to `most` values that pass `rule`, stored as a tuple; `unique` = without repetitions."""

    def check(name: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, Collection) or isinstance(value, (str, bytes, Mapping)):
            refuse(name, value, "a list")
        if not least <= len(value) <= most:
            bound = f"at least {least}" if len(value) < least else f"at most {most}"
            raise _error(name, f"has {len(value)} entries; it must have {bound}")
        stored = [rule(f"{name}[{index}]", item) for index, item in enumerate(value)]
        return tuple(dict.fromkeys(stored) if unique else stored)

    return check


def texts(*, most: int = _MAX_COUNT) -> Rule:
    """Rule: one non-empty text or a list of at most `most` of them, stored as a tuple without repetitions."""
    check = items(text(), most=most, unique=True)
    return lambda name, value: check(name, (value,) if isinstance(value, str) else value)


def mapping(key_rule: Rule, value_rule: Rule) -> Rule:
    """Rule: an object whose keys and values pass their rules, stored as a dict, or as None if it is empty."""

    def check(name: str, value: Any) -> dict[Any, Any] | None:
        if not isinstance(value, Mapping):
            refuse(name, value, "an object")
        stored: dict[Any, Any] = {}
        for given, item in value.items():
            key = key_rule(f"{name} key", given)
            if key in stored:
                raise _error(name, f"names {key} twice; each key may appear once")
            stored[key] = value_rule(f"{name}[{key}]", item)
        return stored or None

    return check


def struct(kind: type[CheckedStruct]) -> Rule:
    """Rule: a `kind`, or an object with the fields of `kind`. Stored as a `kind`."""

    def check(name: str, value: Any) -> CheckedStruct:
        if isinstance(value, kind):
            return value
        if not isinstance(value, Mapping):
            refuse(name, value, f"a {kind.__name__} or an object with its fields")
        for given in value:
            if not isinstance(given, str):
                raise _error(name, f"has the key {_shown(given)}; keys must be text")
        try:
            return kind(**value)
        except RequestError as error:
            raise RequestError(f"{name}: {error}", param=name) from None

    return check


def plain_data(name: str, value: Any) -> Any:
    """Rule: an object of JSON values, at most MAX_NESTING levels deep; stored as None if it is empty."""
    if not isinstance(value, Mapping):
        refuse(name, value, "an object")
    level: list[Any] = [value]
    for _ in range(MAX_NESTING):
        level = [inner for container in level for inner in _inner_containers(name, container)]
        if not level:
            return value or None
    raise _error(name, f"is nested too deeply; at most {MAX_NESTING} levels are allowed")


def json_document(name: str, value: Any) -> Any:
    """Rule: a non-empty JSON object or the text of one, at most MAX_NESTING levels deep; stored as given."""
    parsed = value
    if isinstance(value, str):
        try:
            parsed = msgspec.json.decode(value)
        except (ValueError, RecursionError) as error:
            raise _error(name, f"is {_shown(value)}; it must be valid JSON, but: {error}") from None
    if not isinstance(parsed, Mapping) or not parsed:
        refuse(name, value, "a JSON object with at least one key, or the text of one")
    plain_data(name, parsed)
    return value


def _inner_containers(name: str, container: Any) -> list[Any]:
    """Return the lists and objects in `container`.

    Raises RequestError for a value that JSON or msgspec cannot encode.
    """
    if isinstance(container, Mapping):
        for key in container:
            if not isinstance(key, str) or not _is_utf8(key):
                raise _error(name, f"has the key {_shown(key)}; keys must be text")
        container = container.values()
    inner = []
    for value in container:
        if isinstance(value, (Mapping, list, tuple)):
            inner.append(value)
        elif not _is_plain(value):
            allowed = "text, 64-bit numbers, true, false, null, lists and objects"
            raise _error(name, f"holds {_shown(value)}; it may hold {allowed}")
    return inner


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return _is_utf8(value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**64
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _error(name: str, complaint: str) -> RequestError:
    field = re.match(r"\w+", name)
    return RequestError(f"{name} {complaint}", param=field and field[0])


def _shown(value: Any) -> str:
    try:
        shown = repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        return "a number of thousands of digits"
    return shown if len(shown) <= _MAX_SHOWN else shown[: _MAX_SHOWN - 1] + "…"
