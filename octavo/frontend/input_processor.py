"""`InputProcessor` turns a user's request into the form that the core takes.

It makes every check that does not depend on the engine's state. The core makes the other checks: it rejects a
turn that is too long for its session, and a request whose deadline cannot be met.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import msgspec
import numpy as np

from octavo.errors import RequestError, UnsupportedError
from octavo.features import FrontEndParts, make_handlers
from octavo.frontend.tokenizer import Tokenizer
from octavo.types.options import RequestOptions
from octavo.types.outputs import EngineInfo
from octavo.types.params import RequestOutputKind, SamplingParams, required_features
from octavo.types.requests import EngineCoreRequest

# A text, token ids, {"prompt": text} or {"prompt_token_ids": ids}.
Prompt = str | Sequence[int] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """The position of a request in a session."""

    session_id: str
    continues_session: bool  # False for the first turn
    follows_unfinished: bool  # when it was added, an earlier turn was not known to have ended


@dataclass(frozen=True, slots=True)
class ProcessedInput:
    """A request that has passed every check."""

    prompt: str | None  # None when it came as token ids
    prompt_token_ids: list[int]
    params: SamplingParams  # complete: max_tokens and seed are numbers
    options: RequestOptions
    eos_token_ids: frozenset[int]
    feature_data: Mapping[str, Any]  # by feature: the data that its front-end half prepared
    turn: Turn | None = None  # None = not part of a session

    def for_answer(self, request_id: str, index: int, arrival_time: float) -> EngineCoreRequest:
        """The core's request for one of the n answers."""
        turn = self.turn
        params = self.params.for_answer(index)
        return EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=self.prompt_token_ids,
            sampling_params=params,
            eos_token_ids=self.eos_token_ids,
            arrival_time=arrival_time,
            priority=self.options.priority,
            tenant=self.options.tenant_name,
            deadline_s=self.options.deadline_s,
            session_id=turn.session_id if turn else None,
            continues_session=turn is not None and turn.continues_session,
            follows_unfinished=turn is not None and turn.follows_unfinished,
            cache_salt=self.options.cache_salt,
            feature_data=dict(self.feature_data),
        )


class InputProcessor:
    """Tokenizes prompts, checks requests against the engine, and fills in the parameters left unset."""

    def __init__(self, info: EngineInfo, tokenizer: Tokenizer) -> None:
        self.info = info
        self.tokenizer = tokenizer
        self.handlers = make_handlers(FrontEndParts(info, tokenizer))

    def process_inputs(
        self,
        prompt: Prompt,
        params: SamplingParams,
        options: RequestOptions | None = None,
        turn: Turn | None = None,
    ) -> ProcessedInput:
        """Check and complete a request. Raises RequestError, or UnsupportedError, naming the field.

        A `turn` that continues a session gets no BOS, because its prompt does not begin the text.
        """
        options = options or RequestOptions()
        self._check_params(params, options)
        if turn is not None and params.n > 1:
            raise RequestError(f"n is {params.n}; a session has one answer to each prompt", "n")
        begins = turn is None or not turn.continues_session
        prompt_text, token_ids = self._tokenize(prompt, begins)
        token_ids = self._truncate(token_ids, params.truncate_prompt_tokens, params.max_tokens)
        max_tokens = self._check_length(len(token_ids), params.max_tokens)
        seed = secrets.randbits(63) if params.seed is None else params.seed
        return ProcessedInput(
            prompt=prompt_text,
            prompt_token_ids=token_ids,
            params=msgspec.structs.replace(params, max_tokens=max_tokens, seed=seed),
            options=options,
            eos_token_ids=frozenset(self.tokenizer.eos_token_ids),
            feature_data=self._prepare_features(params, token_ids),
            turn=turn,
        )

    def _prepare_features(self, params: SamplingParams, token_ids: list[int]) -> dict[str, Any]:
        """The data that the front-end halves of features prepare for the request, by feature."""
        prepared = {name: handler.prepare(params, token_ids) for name, handler in self.handlers.items()}
        return {name: data for name, data in prepared.items() if data is not None}

    def _check_params(self, params: SamplingParams, options: RequestOptions) -> None:
        require_params(params)
        for field, feature in required_features(params).items():
            if feature not in self.info.features:
                raise UnsupportedError(
                    f"{field} is {getattr(params, field)!r}, which needs the feature {feature!r}, and this "
                    f"engine is built without it; leave {field} out"
                )
        params.check_against(self.info.vocab_size, self.info.max_logprobs)
        options.check_against(self.info.scheduling_policy)

    def _tokenize(self, prompt: Prompt, begins: bool) -> tuple[str | None, list[int]]:
        """The prompt's text, if it has one, and its token ids."""
        if isinstance(prompt, Mapping):
            given = [key for key in ("prompt", "prompt_token_ids") if prompt.get(key) is not None]
            if len(given) != 1 or set(prompt) - {"prompt", "prompt_token_ids"}:
                raise RequestError(
                    "a prompt given by name has exactly one of 'prompt' and 'prompt_token_ids', "
                    f"not {sorted(prompt)}",
                    "prompt",
                )
            prompt = prompt[given[0]]
        if isinstance(prompt, str):
            return prompt, self.tokenizer.encode(prompt, add_special_tokens=begins)
        if isinstance(prompt, np.ndarray):
            prompt = prompt.tolist()
        if isinstance(prompt, Sequence) and not isinstance(prompt, bytes):
            return None, self._check_token_ids(prompt)
        raise RequestError(
            f"prompt is a {type(prompt).__name__}; it must be a text or a list of token ids", "prompt"
        )

    def _check_token_ids(self, token_ids: Sequence[Any]) -> list[int]:
        size = self.info.vocab_size
        for index, token_id in enumerate(token_ids):
            if (
                isinstance(token_id, bool)
                or not isinstance(token_id, (int, np.integer))
                or not 0 <= token_id < size
            ):
                raise RequestError(
                    f"prompt_token_ids[{index}] is {token_id!r}, which is out of vocabulary; ids are whole "
                    f"numbers from 0 to {size - 1}",
                    "prompt",
                )
        return [int(token_id) for token_id in token_ids]

    def _truncate(self, token_ids: list[int], keep: int | None, max_tokens: int | None) -> list[int]:
        """The last `keep` tokens. -1 = as many as fit with `max_tokens`, or with one token if it is None."""
        if keep is None:
            return token_ids
        limit = self.info.max_model_len - 1
        if keep > limit:
            raise RequestError(
                f"truncate_prompt_tokens is {keep}; it must be at most {limit}, or -1 for what fits",
                "truncate_prompt_tokens",
            )
        if keep < 0:
            keep = max(self.info.max_model_len - (max_tokens or 1), 1)
        return token_ids[-keep:]

    def _check_length(self, num_prompt_tokens: int, max_tokens: int | None) -> int:
        """The most tokens that may be generated. Raises RequestError if `max_tokens` more do not fit."""
        limit = self.info.max_model_len
        if num_prompt_tokens == 0:
            raise RequestError("the prompt is empty; it must have at least one token", "prompt")
        if num_prompt_tokens >= limit:
            raise RequestError(
                f"the prompt has {num_prompt_tokens} tokens, and the context is {limit} tokens, of which at "
                f"least one must be left for the answer; shorten the prompt, or set truncate_prompt_tokens",
                "prompt",
            )
        if max_tokens is None:
            return limit - num_prompt_tokens
        if num_prompt_tokens + max_tokens > limit:
            raise RequestError(
                f"the prompt has {num_prompt_tokens} tokens and max_tokens is {max_tokens}: together "
                f"{num_prompt_tokens + max_tokens}, and the context is {limit} tokens; max_tokens can be at "
                f"most {limit - num_prompt_tokens}",
                "max_tokens",
            )
        return max_tokens


def holds_token_ids(prompts: Sequence[Any]) -> bool:
    """Whether a sequence holds only numbers, and so is one prompt and not several."""
    return all(isinstance(item, (Number, np.generic)) for item in prompts)


def require_params(params: Any) -> None:
    """Raise RequestError if `params` is not SamplingParams."""
    if not isinstance(params, SamplingParams):
        raise RequestError(
            f"sampling_params holds a {type(params).__name__}; it must be SamplingParams", "sampling_params"
        )


def final_only(params: SamplingParams) -> SamplingParams:
    """`params` with output only when the request is finished. Raises RequestError if not SamplingParams."""
    require_params(params)
    return msgspec.structs.replace(params, output_kind=RequestOutputKind.FINAL_ONLY)
