"""`LoadedModel`: a model with a command's parameters, which streams answers to prompts. Knows no flags."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.config import EngineConfig
from octavo.errors import OctavoError
from octavo.frontend.input_processor import Prompt
from octavo.frontend.interrupts import deferred_interrupt
from octavo.frontend.llm_engine import LLMEngine
from octavo.types.outputs import RequestOutput
from octavo.types.params import RequestOutputKind, SamplingParams

_REQUEST_ID = "answer"  # there is never more than one under way


@dataclass(slots=True)
class Answer:
    """An answer, with its counts and times. Times are in seconds since the request; None = no token came."""

    text: str = ""
    finish_reason: str | None = None  # a FinishReason's value; None = Ctrl-C ended it
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0  # prompt tokens that came from the prefix cache
    num_tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the answer."""
        return self.finish_reason is None

    @property
    def prompt_speed(self) -> float | None:
        """Prompt tokens computed (not those from the cache) per second."""
        return _rate(self.num_prompt_tokens - self.num_cached_tokens, self.first_token_s)

    @property
    def speed(self) -> float | None:
        """Tokens generated per second, after the first token. That one counts as the prompt's time."""
        if self.first_token_s is None or self.last_token_s is None:
            return None
        return _rate(self.num_tokens - 1, self.last_token_s - self.first_token_s)

    def describe_speed(self) -> str:
        """The speeds as one line."""
        cached = f" ({self.num_cached_tokens} of them cached)" if self.num_cached_tokens else ""
        parts = [
            f"prompt: {self.num_prompt_tokens} tokens{cached}{_shown(self.prompt_speed)}",
            f"answer: {self.num_tokens} tokens{_shown(self.speed)}",
        ]
        if self.first_token_s is not None:
            parts.append(f"first token after {self.first_token_s:.2f} s")
        return " | ".join(parts)

    def add(self, output: RequestOutput, elapsed_s: float) -> str:
        """Add an output that came `elapsed_s` after the request. Returns its text.

        Raises OctavoError if the answer failed.
        """
        (new,) = output.outputs
        self.num_prompt_tokens = len(output.prompt_token_ids)
        self.num_cached_tokens = output.num_cached_tokens
        self.num_tokens += len(new.token_ids)
        self.text += new.text
        self.finish_reason = new.finish_reason
        if new.token_ids:
            self.first_token_s = elapsed_s if self.first_token_s is None else self.first_token_s
            self.last_token_s = elapsed_s
        if new.finish_reason == "error":
            raise OctavoError(f"the answer failed: {new.stop_reason}")
        return new.text


class LoadedModel:
    """A model that answers prompts, one at a time."""

    def __init__(self, config: EngineConfig, params: SamplingParams) -> None:
        """Load the model. Raises what `LLMEngine.from_config` raises."""
        self.model = config.model.model
        self.params = msgspec.structs.replace(params, output_kind=RequestOutputKind.DELTA)
        self._engine = LLMEngine.from_config(config)
        self.has_chat_template = bool(config.model.chat_template or self._engine.tokenizer.chat_template)

    @property
    def context(self) -> int:
        """The most tokens that a prompt and its answer may have together."""
        return self._engine.info.max_model_len

    def render(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The prompt that asks for the next message of a conversation, as token ids. Raises RequestError."""
        return self._engine.chat_template.encode_chat(messages)

    def answer(
        self,
        prompt: Prompt,
        show: Callable[[str], None],
        announce_stop: Callable[[], None] = lambda: None,
    ) -> Answer:
        """Answer `prompt`, and pass each new part of the text to `show` as it comes.

        Ctrl-C calls `announce_stop` and ends the answer after the current step; the model stays usable. A
        second Ctrl-C raises KeyboardInterrupt at once. Raises RequestError for a prompt that cannot be
        answered, and OctavoError if the model fails.
        """
        answer = Answer()
        start = time.perf_counter()
        collector = self._engine.add_request(_REQUEST_ID, prompt, self.params)
        try:
            with deferred_interrupt(announce_stop) as was_interrupted:
                while not collector.is_finished and not was_interrupted():
                    self._engine.step()
                    if (output := collector.get_nowait()) is not None:
                        show(answer.add(output, time.perf_counter() - start))
        finally:
            self._engine.abort_requests([_REQUEST_ID])  # no effect if the answer is complete
        return answer


def _rate(count: int, duration_s: float | None) -> float | None:
    return count / duration_s if count > 0 and duration_s else None


def _shown(speed: float | None) -> str:
    return "" if speed is None else f", {speed:.1f} tokens/s"
