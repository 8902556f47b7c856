"""Running chat templates: Jinja in a sandbox, with the extras that Hugging Face templates count on.

A template comes with a model, so it is not trusted: it cannot reach Python objects or change what it is
given. A rendering has a budget for the turns of its loops, its calls, and the characters and list items that
it makes on the way (`template_bounds`), and its calls nest only so deep. Filters and methods that no prompt
needs and whose cost is hard to reckon are left out.

Not bounded is what a turn comes to: it lasts as long, and writes as many pieces, as the body of its loop has
statements, and each of them may search long texts, or compare lists that hold one another many times over.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import reduce, wraps
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.visitor import NodeTransformer

from octavo.errors import RequestError
from octavo.frontend.template_bounds import Budget, growth, operator_cost, sum_of_numbers

# A level takes about six of Python's thousand calls.
MAX_CALL_DEPTH = 50

# What a call takes, in turns of a loop with little in it.
_CALL = 10

# These work on the text of whatever they are given, and on its items one by one.
_TEXT_FILTERS = (
    *("capitalize", "center", "e", "escape", "forceescape", "indent", "lower", "safe", "string", "striptags"),
    *("title", "trim", "truncate", "upper", "wordcount"),
)
_ITEM_FILTERS = (
    *("dictsort", "groupby", "items", "list", "map", "max", "min", "reject", "rejectattr", "reverse"),
    *("select", "selectattr", "sort", "unique"),
)
_UNBOUNDED_FILTERS = ("batch", "pprint", "slice", "urlencode", "urlize", "wordwrap", "xmlattr")
_UNBOUNDED_METHODS = frozenset({"encode", "format_map", "to_bytes", "translate"})

# What a template can provoke, apart from its own errors: it computes with whatever values a request holds.
# SyntaxError is Python's, for more than twenty loops inside one another.
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
    """A compiled template. May be rendered from several threads at once.

    Making one and rendering it raise RequestError with the template's own message: for a syntax error, for
    what it refuses by `raise_exception`, for a value that is not there, and for exceeding a bound.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        with _errors_as_request_errors():
            environment = _Rendering()
            self._code = environment.compile(_HookInserter().visit(environment.parse(source)))

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text that the template writes, given `variables`."""
        with _errors_as_request_errors():
            environment = _Rendering()
            template = Template.from_code(environment, self._code, environment.make_globals(None))
            return template.render(variables)


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


class _HookInserter(NodeTransformer):
    """Puts a filter or an operator, which `_Rendering` can bound, where Jinja offers no hook."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - Jinja's name for it
        self.generic_visit(node)
        node.iter = _filtered("counted", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        texts: list[nodes.Expr] = [_filtered("string", part) for part in node.nodes]
        return reduce(lambda left, right: nodes.Add(left, right, lineno=node.lineno), texts)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filtered("charged", node) if isinstance(node.arg, nodes.Slice) else node


def _filtered(name: str, node: nodes.Node) -> nodes.Expr:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _GenerationTag(Extension):
    """{% generation %} … {% endgeneration %} marks, for training, what an assistant wrote; no effect here."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it per instance

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Rendering(ImmutableSandboxedEnvironment):
    """The environment of one rendering, which charges it for what it does, up to the bounds."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing is computed while compiling
            extensions=[_GenerationTag, loopcontrols],
            finalize=self._as_output,
        )
        self._budget = Budget()
        self._call_depth = 0
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": self._strftime_now}
        del self.globals["lipsum"]
        self._set_filters()

    def _set_filters(self) -> None:
        for name in _UNBOUNDED_FILTERS:
            del self.filters[name]
        for name in _TEXT_FILTERS:
            self.filters[name] = self._bounded_filter(name, self._budget.text_of)
        for name in _ITEM_FILTERS:
            self.filters[name] = self._bounded_filter(name, self._budget.counted)
        self.filters |= {
            "charged": self._budget.charged,
            "counted": self._budget.counted,
            "format": self._format,
            "join": self._join,
            "replace": self._replace,
            "round": self._bounded_filter("round", lambda number: number),
            "sum": self._sum,
            "tojson": self._to_json,
        }

    # What Jinja calls

    @pass_context  # so that Jinja doesn't apply it to constants while compiling
    def _as_output(self, context: Context, value: Any) -> str:
        return self._budget.text_of(value)

    def concat(self, pieces: Iterable[str]) -> str:
        """The text of the whole, a macro or a block, from what it wrote."""
        return self._budget.join("", pieces)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator's result."""
        if operator == "%" and isinstance(left, str):
            self._budget.spend_on_format(left, right)
        self._budget.spend(operator_cost(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A call's result: of a method, a macro, a recursive loop or a global function."""
        self._budget.take(_CALL)
        if isinstance(function, LoopContext):
            args = (self._budget.counted(args[0]), *args[1:])
        elif isinstance(text := getattr(function, "__self__", None), str):
            if function.__name__ == "join":
                return self._budget.join(text, self._budget.counted(*args))
            self._budget.spend(growth(function.__name__, text, *args, **kwargs))
        if self._call_depth == MAX_CALL_DEPTH:
            raise TemplateError(f"its calls nest deeper than {MAX_CALL_DEPTH}")
        self._call_depth += 1
        try:
            return self._budget.charged(super().call(context, function, *args, **kwargs))
        finally:
            self._call_depth -= 1

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether the template may have this attribute."""
        return attr not in _UNBOUNDED_METHODS and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The bounded form of `str.format`, if that is what `value` is."""
        if super().wrap_str_format(value) is None or value.__name__ != "format":
            return None
        formatter = _BoundedFormatter(self, self._budget)
        return lambda *args, **kwargs: formatter.vformat(value.__self__, args, kwargs)

    # Filters

    def _bounded_filter(self, name: str, prepare: Callable[[Any], Any]) -> Callable[..., Any]:
        """Jinja's filter `name` on what `prepare` makes of the value, charged for its result."""
        original = self.filters[name]
        at = 1 if hasattr(original, "jinja_pass_arg") else 0

        @wraps(original)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            value = prepare(args[at])
            self._budget.spend(growth(name, value, *args[at + 1 :], **kwargs))
            return self._budget.charged(original(*args[:at], value, *args[at + 1 :], **kwargs))

        return bounded

    @pass_context
    def _format(self, context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        return self.call_binop(context, "%", self._budget.text_of(value), kwargs or args)

    def _join(self, items: Iterable[Any], d: Any = "", attribute: str | int | None = None) -> str:
        return self._budget.join(
            self._budget.text_of(d), map(self._budget.text_of, self._items(items, attribute))
        )

    def _replace(self, value: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, old, new = map(self._budget.text_of, (value, old, new))
        self._budget.spend(len(text) + growth("replace", text, old, new))
        return text.replace(old, new, -1 if count is None else count)

    @pass_context
    def _sum(
        self, context: Context, items: Iterable[Any], attribute: str | int | None = None, start: Any = 0
    ) -> Any:
        terms = self._items(items, attribute)
        return reduce(lambda left, right: self.call_binop(context, "+", left, right), terms, start)

    def _items(self, items: Iterable[Any], attribute: str | int | None) -> Iterable[Any]:
        counted = self._budget.counted(items)
        return counted if attribute is None else map(make_attrgetter(self, attribute), counted)

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as models were trained on: without Jinja's escapes for HTML."""
        self._budget.spend(indent or 0)
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        self._budget.spend_on_text_of(value)
        pieces: list[str] = []
        for piece in encoder.iterencode(value):
            self._budget.spend(len(piece))
            pieces.append(piece)
        return "".join(pieces)

    def _strftime_now(self, form: str) -> str:
        self._budget.spend(256 * len(form))  # the widths in it are honoured up to that
        return datetime.now().strftime(form)


class _BoundedFormatter(SandboxedFormatter):
    """Writes what `str.format` writes, charging a rendering for it."""

    def __init__(self, rendering: _Rendering, budget: Budget) -> None:
        super().__init__(rendering)
        self._budget = budget

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        value, key = super().get_field(field_name, args, kwargs)
        self._budget.spend_on_text_of(value)
        return value, key

    def format_field(self, value: Any, format_spec: str) -> str:
        self._budget.spend(sum_of_numbers(format_spec))
        return super().format_field(value, format_spec)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
