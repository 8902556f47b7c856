"""Runs chat templates: Jinja in its sandbox, with the extensions that Hugging Face templates need.

A template comes with a model, so it is not trusted. It cannot reach Python objects or change its variables.
The numbers of loop iterations and calls are bounded, and so are the sizes of repeated texts and of powers.
The time and the memory that a single filter or method takes are not bounded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from octavo.errors import RequestError

# A template that compares each of 500 messages with all others takes 250 000 turns. A million take a second.
MAX_TURNS = 1_000_000
# The size of a text or list that is repeated, in items, or of a power, in bits.
MAX_SIZE = 10_000_000

# Errors that a template can cause, besides its own: it computes with the values that a request holds.
# Python raises SyntaxError for more than twenty nested loops.
_ERRORS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


class JinjaTemplate:
    """A compiled template. Several threads may render it at once.

    Construction and rendering raise RequestError for a syntax error, a missing value, and a bound that is
    exceeded. If the template calls `raise_exception`, the RequestError has the template's message.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        with _errors_as_request_errors():
            environment = _Rendering()
            self._code = environment.compile(_TurnCounting().visit(environment.parse(source)))

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text that the template writes, given `variables`."""
        with _errors_as_request_errors():
            environment = _Rendering()
            return Template.from_code(environment, self._code, environment.make_globals(None)).render(
                variables
            )


@contextmanager
def _errors_as_request_errors() -> Iterator[None]:
    try:
        yield
    except _ERRORS as error:
        match error:
            case RecursionError():
                reason = f"it nests deeper than Python's limit of {sys.getrecursionlimit()} calls"
            case MemoryError():
                reason = "it takes more memory than there is"
            case _:
                reason = str(error) or type(error).__name__
        raise RequestError(
            f"the chat template cannot render this conversation: {reason}", param="messages"
        ) from error


class _TurnCounting(NodeTransformer):
    """Passes the items of every loop through the filter `counted`; Jinja has no other hook to count them."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - Jinja's name for it
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "counted", [], [], None, None, lineno=node.lineno)
        return node


class _GenerationTag(Extension):
    """{% generation %} … {% endgeneration %} marks an assistant's text for training. No effect here."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it per instance

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Rendering(ImmutableSandboxedEnvironment):
    """The environment of one rendering. It counts turns: loop iterations and calls."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing is computed while compiling
            extensions=[_GenerationTag, loopcontrols],
        )
        self._turns_left = MAX_TURNS
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self.filters |= {"counted": self._counted, "tojson": _to_json}

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The result of a call of a method, a macro, a recursive loop or a global function."""
        self._take_turn()
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The result of `left * right` or `left ** right`."""
        if _size_of_result(operator, left, right) > MAX_SIZE:
            raise TemplateError(f"the result of {operator} is larger than {MAX_SIZE}")
        return super().call_binop(context, operator, left, right)

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._take_turn()
            yield item

    def _take_turn(self) -> None:
        self._turns_left -= 1
        if self._turns_left < 0:
            raise TemplateError(f"its loops and calls take more than {MAX_TURNS} turns")


def _size_of_result(operator: str, left: Any, right: Any) -> int:
    """The items of a repeated text or list, or the bits of a power; 0 for any other operation."""
    match operator, left, right:
        case "**", int(), int():
            return left.bit_length() * right
        case "*", int(), str() | list() | tuple():
            return left * len(right)
        case "*", str() | list() | tuple(), int():
            return len(left) * right
    return 0


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """`value` as JSON, as in models' training data: without Jinja's escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
