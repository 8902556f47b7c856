"""Checks the variables of a chat request, and brings them into the form that chat templates expect."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import RequestError

Message = dict[str, Any]

# Schemas of tools nest deepest, at most a few dozen levels. Python's recursion limit allows some hundreds.
MAX_DEPTH = 100


def normalize_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy of `variables`, including `messages`, that holds only values that JSON can express.

    In every message the content becomes a text, and the arguments of tool calls become the object that their
    JSON describes. Content given as parts becomes the parts' texts, joined without a separator. Content that
    is absent or null (allowed beside tool calls) becomes "". Raises RequestError, which names the variable
    and says what is wrong in it.
    """
    plain = {name: _plain(value, name) for name, value in variables.items()}
    return {**plain, "messages": _normalize_messages(plain["messages"])}


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    variable = re.split(r"[.\[]", where, maxsplit=1)[0]
    if depth > MAX_DEPTH:
        raise RequestError(f"{variable} nests deeper than {MAX_DEPTH} levels", variable)
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return str.__str__(value)
        case Mapping():
            if odd := [key for key in value if not isinstance(key, str)]:
                raise RequestError(f"{where} has the key {odd[0]!r}; keys must be texts", variable)
            return {
                str.__str__(key): _plain(item, f"{where}.{key}", depth + 1) for key, item in value.items()
            }
        case Sequence() if not isinstance(value, (bytes, bytearray, memoryview)):
            return [_plain(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise RequestError(
        f"{where} is a {type(value).__name__}; it must be a text, a number, true, false, null, a list or an "
        "object",
        variable,
    )


def _normalize_messages(messages: Any) -> list[Message]:
    if not isinstance(messages, list):
        raise RequestError(f"messages is a {type(messages).__name__}; it must be a list", "messages")
    if not messages:
        raise RequestError("messages is empty; a conversation has at least one message", "messages")
    return [_normalize_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _normalize_message(message: Any, where: str) -> Message:
    if not isinstance(message, dict):
        raise RequestError(f"{where} is a {type(message).__name__}; it must be an object", "messages")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f'{where} has role {role!r}; it must be a text such as "user"', "messages")
    normal = {**message, "content": _content_text(message.get("content"), where)}
    if tool_calls := message.get("tool_calls"):
        if not isinstance(tool_calls, list):
            raise RequestError(f"{where} has tool_calls that are no list", "messages")
        normal["tool_calls"] = [_normalize_tool_call(call, where) for call in tool_calls]
    elif message.get("content") is None:
        raise RequestError(
            f"{where} ({role}) has no content; only an assistant message with tool_calls may go without",
            "messages",
        )
    return normal


def _content_text(content: Any, where: str) -> str:
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            return "".join(
                _part_text(part, f"{where}.content[{index}]") for index, part in enumerate(content)
            )
    raise RequestError(
        f"{where} has content of type {type(content).__name__}; it must be a text or a list of parts",
        "messages",
    )


def _part_text(part: Any, where: str) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": kind}:
            given = f"is a part of type {kind!r}"
        case _:
            given = "is no content part"
    raise RequestError(
        f'{where} {given}; this model takes parts of the form {{"type": "text", "text": "…"}}',
        "messages",
    )


def _normalize_tool_call(call: Any, where: str) -> dict[str, Any]:
    """The call with its arguments as an object: requests give them as JSON text, templates read an object."""
    match call:
        case {"function": {"arguments": str(text), **function}}:
            try:
                arguments = json.loads(text or "{}")
            except (ValueError, RecursionError) as error:
                raise RequestError(
                    f"{where} has a tool call whose arguments are not JSON: {error}", "messages"
                ) from error
            arguments = _plain(arguments, f"{where}.tool_calls")
            return {**call, "function": {**function, "arguments": arguments}}
        case {"function": {}}:
            return dict(call)
    raise RequestError(f'{where} has a tool call without a "function" object', "messages")
