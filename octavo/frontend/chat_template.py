"""Conversations to prompts: rendering a model's chat template and tokenizing what it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.errors import ConfigError, RequestError
from octavo.frontend.conversation import normalize_messages
from octavo.frontend.stand_ins import StandIns, texts_in, unused_characters
from octavo.frontend.template_engine import render_template
from octavo.frontend.tokenizer import Tokenizer


class ChatTemplate:
    """The chat template of a model, or `source` in its place.

    Messages are objects with a role and a content, as in the OpenAI API; `normalize_messages` says what is
    allowed in them. Every method raises RequestError for a conversation that cannot be rendered.

    The text of a control token in a message is tokenized as text, unless `allow_special_tokens_in_content`.
    """

    def __init__(
        self, tokenizer: Tokenizer, source: str | None = None, allow_special_tokens_in_content: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._source = tokenizer.chat_template if source is None else source
        self._allow_special_tokens = allow_special_tokens_in_content

    @classmethod
    def from_setting(
        cls, setting: str | None, tokenizer: Tokenizer, allow_special_tokens_in_content: bool = False
    ) -> ChatTemplate:
        """What the setting `chat_template` asks for: a file, a template itself, or None for the model's own.

        Raises ConfigError for a file that is not there.
        """
        if setting is None or "{{" in setting or "{%" in setting:
            return cls(tokenizer, setting, allow_special_tokens_in_content)
        path = Path(setting)
        if not path.is_file():
            raise ConfigError(
                f"chat_template is {setting!r}, which is no file, and no Jinja template either: it has no "
                "{{ or {%. Give the path of a template file, or the text of a template."
            )
        return cls(tokenizer, path.read_text(encoding="utf-8"), allow_special_tokens_in_content)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt as text.

        `add_generation_prompt` ends it with the opening of the assistant's turn; `continue_final_message`
        ends it with the exact text of the last message, for the model to go on from there, and excludes the
        former. `variables` are for the template: `tools`, `documents` and whatever else it knows.
        """
        variables["add_generation_prompt"] = add_generation_prompt
        prepared, end_mark = self._prepare(messages, variables, continue_final_message)
        return self._write(prepared, end_mark)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> list[int]:
        """The prompt as token ids, with exactly one BOS where the model wants one; arguments as for `render`.

        The text of a control token in the request stays text, so that no message can forge a turn; the
        template sees it with its first character exchanged.
        """
        variables["add_generation_prompt"] = add_generation_prompt
        prepared, end_mark = self._prepare(messages, variables, continue_final_message)
        stand_ins = StandIns(prepared, self._template, self._tokenizer.special_tokens)
        if self._allow_special_tokens or not stand_ins:
            text = self._write(prepared, end_mark)
            return self._with_one_bos(self._tokenizer.encode(text, add_special_tokens=False))
        text = self._write(stand_ins.replace(prepared), end_mark)
        segments: list[str | int] = []
        written = 0
        for start, end, token_id in self._tokenizer.special_tokens.find(text):
            segments += stand_ins.restore(text[written:start]), token_id
            written = end
        segments.append(stand_ins.restore(text[written:]))
        return self._with_one_bos(self._tokenizer.encode_segments(segments))

    @property
    def _template(self) -> str:
        if self._source is None:
            raise RequestError(
                "This model has no chat template, so messages cannot be turned into a prompt. Give one by "
                "the setting chat_template (--chat-template FILE, in Jinja), or send a ready prompt instead.",
                param="messages",
            )
        return self._source

    def _prepare(
        self, messages: Sequence[Mapping[str, Any]], variables: dict[str, Any], continue_final_message: bool
    ) -> tuple[dict[str, Any], str]:
        """The variables of the rendering, and the mark after the message to continue ("" for none)."""
        prepared = {"tools": None, "documents": None, **variables, "messages": normalize_messages(messages)}
        if not continue_final_message:
            return prepared, ""
        if variables["add_generation_prompt"]:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other; set one to false.",
                param="continue_final_message",
            )
        end_mark = next(unused_characters((self._template, *texts_in(prepared))))
        prepared["messages"][-1]["content"] += end_mark
        return prepared, end_mark

    def _write(self, variables: Mapping[str, Any], end_mark: str) -> str:
        """Render, and cut what the template writes after `end_mark`, where there is one."""
        text = render_template(self._template, {**self._tokenizer.role_texts, **variables})
        if not end_mark:
            return text
        before, mark, _ = text.rpartition(end_mark)
        if not mark:
            raise RequestError(
                "continue_final_message is set, but the chat template leaves out the final message's text.",
                param="continue_final_message",
            )
        return before.replace(end_mark, "")

    def _with_one_bos(self, token_ids: list[int]) -> list[int]:
        """Templates of models that start with BOS differ in whether they write it."""
        bos_token_id = self._tokenizer.bos_token_id
        if bos_token_id is None or not self._tokenizer.add_bos_token:
            return token_ids
        start = next((i for i, token_id in enumerate(token_ids) if token_id != bos_token_id), len(token_ids))
        return [bos_token_id, *token_ids[start:]]
