"""The messages of a chat request, checked and brought into the one shape that chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import RequestError

Message = dict[str, Any]


def normalize_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Copies of `messages` in which every content is a string and the arguments of every tool call are an
    object.

    Content given as parts is their texts joined with nothing between; content that is absent or null (allowed
    beside tool calls) is "". Other fields stay as they are. Raises RequestError, naming the message and what
    is wrong in it.
    """
    if not messages:
        raise RequestError("messages is empty; a conversation needs at least one message.", param="messages")
    return [_normalize_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _normalize_message(message: Mapping[str, Any], where: str) -> Message:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} is a {type(message).__name__}; it must be an object.", param="messages")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f'{where} has role {role!r}; it must be a text such as "user".', param="messages")
    normal = {**message, "content": _content_text(message.get("content"), where)}
    if tool_calls := message.get("tool_calls"):
        if not isinstance(tool_calls, list):
            raise RequestError(f"{where} has tool_calls that are no list.", param="messages")
        normal["tool_calls"] = [_normalize_tool_call(call, where) for call in tool_calls]
    elif message.get("content") is None:
        raise RequestError(
            f"{where} ({role}) has no content; only an assistant message with tool_calls may go without.",
            param="messages",
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
        f"{where} has content of type {type(content).__name__}; it must be a text or a list of parts.",
        param="messages",
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
        f'{where} {given}; this model takes parts of the form {{"type": "text", "text": "…"}}.',
        param="messages",
    )


def _normalize_tool_call(call: Any, where: str) -> dict[str, Any]:
    """Requests carry arguments as a text of JSON, templates print them from the object it describes."""
    match call:
        case {"function": {"arguments": str(text), **function}}:
            try:
                arguments = json.loads(text or "{}")
            except ValueError as error:
                raise RequestError(
                    f"{where} has a tool call whose arguments are not JSON: {error}", param="messages"
                ) from error
            return {**call, "function": {**function, "arguments": arguments}}
        case {"function": {}}:
            return dict(call)
    raise RequestError(f'{where} has a tool call without a "function" object.', param="messages")
