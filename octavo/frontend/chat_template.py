"""`ChatTemplate` turns the messages of a request into a prompt, as token ids, by a model's chat template.

It brings the request into one form (`chat_variables`), and makes control tokens that its texts spell
unrecognizable (`stand_ins`). Then it runs the template (`template_engine`), divides the text into control
tokens and plain text, and tokenizes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from octavo.errors import ConfigError, RequestError
from octavo.frontend.chat_variables import normalize_variables
from octavo.frontend.stand_ins import ControlTokenEdges, StandIns, texts_in, unused_characters
from octavo.frontend.template_engine import JinjaTemplate
from octavo.frontend.tokenizer import Tokenizer


class ChatTemplate:
    """The chat template of a model, or the template `source` instead of it. It is compiled on first use.

    Messages are objects with a role and a content, as in the OpenAI API; `normalize_variables` says what is
    allowed in them. Every method raises RequestError for a conversation that cannot be rendered.

    If a text of a request spells a control token, it is tokenized as plain text, within the limits that
    `stand_ins` states. With `allow_special_tokens_in_content` it becomes that token, and then any message can
    forge messages of other roles.
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
        """The template of the setting `chat_template`: a file's path, a template, or None = the model's own.

        Raises ConfigError for a file that does not exist.
        """
        if setting is None or "{{" in setting or "{%" in setting:
            return cls(tokenizer, setting, allow_special_tokens_in_content)
        path = Path(setting)
        if not path.is_file():
            raise ConfigError(
                f"chat_template is {setting!r}, which is no file, and no Jinja template either: it has no "
                "{{ or {%; give the path of a template file, or the text of a template"
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

        With `add_generation_prompt` it ends with the opening of the assistant's turn. With
        `continue_final_message` it ends with the exact text of the last message, which the model continues.
        The two exclude each other. `variables` go to the template: `tools`, `documents` and any others that
        it reads.
        """
        variables |= {"messages": messages, "add_generation_prompt": add_generation_prompt}
        return self._write(_prepare(variables, continue_final_message), continue_final_message)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> list[int]:
        """The prompt as token ids, with exactly one BOS if the model uses BOS. Arguments are as for `render`.

        Unless `allow_special_tokens_in_content` is set, the template sees other characters in place of the
        first and last characters of each control token that the request spells.
        """
        variables |= {"messages": messages, "add_generation_prompt": add_generation_prompt}
        prepared = _prepare(variables, continue_final_message)
        stand_ins = StandIns(prepared, self._template.source, self._edges)
        if self._allow_special_tokens or not stand_ins:
            text = self._write(prepared, continue_final_message)
            return self._with_one_bos(self._tokenizer.encode(text, add_special_tokens=False))
        text = self._write(stand_ins.replace(prepared), continue_final_message)
        segments: list[str | int] = []
        written = 0
        for start, end, token_id in self._tokenizer.special_tokens.find(text):
            segments += stand_ins.restore(text[written:start]), token_id
            written = end
        segments.append(stand_ins.restore(text[written:]))
        return self._with_one_bos(self._tokenizer.encode_segments(segments))

    @cached_property
    def _template(self) -> JinjaTemplate:
        if self._source is None:
            raise RequestError(
                "the model has no chat template, so messages cannot be turned into a prompt; give one by the "
                "setting chat_template (--chat-template FILE, in Jinja), or send a ready prompt instead",
                param="messages",
            )
        return JinjaTemplate(self._source)

    @cached_property
    def _edges(self) -> ControlTokenEdges:
        return ControlTokenEdges(self._tokenizer)

    def _write(self, variables: dict[str, Any], continue_final_message: bool) -> str:
        """Render. To continue the final message, cut what the template writes after the message's text."""
        variables = {**self._tokenizer.role_texts, **variables}
        if not continue_final_message:
            return self._template.render(variables)
        end_mark = next(unused_characters((self._template.source, *texts_in(variables))))
        *earlier, last = variables["messages"]
        variables["messages"] = [*earlier, {**last, "content": last["content"] + end_mark}]
        before, mark, _ = self._template.render(variables).rpartition(end_mark)
        if not mark:
            raise RequestError(
                "continue_final_message is set, but the chat template leaves out the final message's text",
                param="continue_final_message",
            )
        return before.replace(end_mark, "")

    def _with_one_bos(self, token_ids: list[int]) -> list[int]:
        """`token_ids`, with exactly one BOS if the model uses BOS. Only some templates write it."""
        bos_token_id = self._tokenizer.bos_token_id
        if bos_token_id is None or not self._tokenizer.add_bos_token:
            return token_ids
        start = next((i for i, token_id in enumerate(token_ids) if token_id != bos_token_id), len(token_ids))
        return [bos_token_id, *token_ids[start:]]


def _prepare(variables: dict[str, Any], continue_final_message: bool) -> dict[str, Any]:
    """The variables in the form that the template expects, without those of the tokenizer."""
    if continue_final_message and variables["add_generation_prompt"]:
        raise RequestError(
            "continue_final_message and add_generation_prompt exclude each other; set one to false",
            param="continue_final_message",
        )
    return normalize_variables({"tools": None, "documents": None, **variables})
