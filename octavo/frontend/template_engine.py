"""Running chat templates: Jinja in a sandbox, with the extras that Hugging Face templates count on.

A template comes with a model or with a request, so it is not trusted: it cannot reach Python objects or
change what it is given, and both the turns of its loops and the text it writes are bounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Environment, Template, TemplateError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.errors import RequestError

# Five hundred messages, each compared with all, take a quarter of a million turns; a million take a second.
MAX_LOOP_TURNS = 1_000_000
MAX_TEXT_CHARACTERS = 64_000_000

_BUDGET = "__loop_budget__"

# What a template can provoke, apart from its own errors: it computes with whatever values a request holds.
_RUNTIME_ERRORS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
)


def render_template(source: str, variables: Mapping[str, Any]) -> str:
    """The text that the template `source` writes, given `variables`.

    Raises RequestError with the template's own message: for a syntax error, for what it refuses by
    `raise_exception`, for a value that is not there, and for exceeding a bound.
    """
    try:
        template = _compile(source)
        return _join(template.generate({**variables, _BUDGET: _LoopBudget()}))
    except _RUNTIME_ERRORS as error:
        reason = str(error) or type(error).__name__
        raise RequestError(
            f"The chat template cannot render this conversation: {reason}", param="messages"
        ) from error


@lru_cache(maxsize=32)
def _compile(source: str) -> Template:
    environment = _environment()
    tree = environment.parse(source)
    for loop in list(tree.find_all(nodes.For)):
        loop.iter = nodes.Filter(loop.iter, "counted", [], [], None, None, lineno=loop.lineno)
    return environment.from_string(tree)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.filters["counted"] = _counted
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _LoopBudget:
    """The turns that the loops of one rendering may still take."""

    def __init__(self) -> None:
        self._turns_left = MAX_LOOP_TURNS

    def take(self, turns: int) -> None:
        self._turns_left -= turns
        if self._turns_left < 0:
            raise TemplateError(f"its loops take more than {MAX_LOOP_TURNS} turns")

    def take_each(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.take(1)
            yield item


@pass_context
def _counted(context: Context, items: Iterable[Any]) -> Iterable[Any]:
    """What every loop runs over, charged to the budget; something of known length is charged at once."""
    budget: _LoopBudget = context[_BUDGET]
    try:
        budget.take(len(items))  # type: ignore[arg-type]
    except TypeError:
        return budget.take_each(items)
    return items


def _join(pieces: Iterable[str]) -> str:
    text: list[str] = []
    room = MAX_TEXT_CHARACTERS
    for piece in pieces:
        room -= len(piece)
        if room < 0:
            raise TemplateError(f"it writes more than {MAX_TEXT_CHARACTERS} characters")
        text.append(piece)
    return "".join(text)


class _GenerationTag(Extension):
    """{% generation %} … {% endgeneration %} marks, for training, what an assistant wrote; no effect here."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it per instance

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on: without Jinja's escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
