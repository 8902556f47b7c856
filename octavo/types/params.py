"""`SamplingParams`: how a request is sampled, when it ends, and what its outputs hold.

Parameters are checked when they are created: each field against the rule in its annotation, then for fields
that contradict each other. `check_against` checks them against a model. `required_features` returns the
features that an engine needs to serve them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from octavo.errors import RequestError
from octavo.types.rules import (
    CheckedStruct,
    checked,
    field_rules,
    flag,
    items,
    json_document,
    mapping,
    number,
    one_of,
    plain_data,
    struct,
    text,
    texts,
    whole,
)

GREEDY_BELOW = 1e-5  # a temperature below this is greedy: the most likely token is taken
MAX_ANSWERS = 16384
MAX_STOP_STRINGS = 16
MAX_LOGPROB_TOKEN_IDS = 128
ALL_LOGPROBS = -1  # in `logprobs` and `prompt_logprobs`: the whole vocabulary

_token_id = whole()
_token_ids = items(_token_id, unique=True)


def _token_key(name: str, value: Any) -> Any:
    """Rule: a token id, or its digits as text, since JSON turns integer keys into text."""
    # No id has twenty digits.
    is_digits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20
    return _token_id(name, int(value) if is_digits else value)


def _logprob_count(name: str, value: Any) -> Any:
    """Rule: a number of logprobs. True is stored as 1, and False as None."""
    if isinstance(value, bool):
        return 1 if value else None
    return whole(special={ALL_LOGPROBS: ALL_LOGPROBS})(name, value)


class RequestOutputKind(enum.Enum):
    """What each output of a running request holds."""

    CUMULATIVE = "cumulative"  # everything generated so far
    DELTA = "delta"  # what was generated since the last output
    FINAL_ONLY = "final_only"  # one output, at the end


class StructuredOutputsParams(CheckedStruct, frozen=True, kw_only=True, omit_defaults=True):
    """A constraint on the form of the text. Exactly one kind must be given. Raises RequestError."""

    json: Annotated[
        str | dict[str, Any] | None,
        checked(json_document, "JSON schema the text must satisfy, or the schema's text"),
    ] = None
    regex: Annotated[
        str | None, checked(text(forbidden="\0"), "regular expression the whole text must match")
    ] = None
    choice: Annotated[
        Sequence[str] | None,
        checked(items(text(), least=1, unique=True), "texts, one of which must be the answer"),
    ] = None
    grammar: Annotated[
        str | None, checked(text(blank=False), "context-free grammar the text must follow")
    ] = None
    json_object: Annotated[bool | None, checked(flag, "true = any JSON object")] = None
    structural_tag: Annotated[
        str | dict[str, Any] | None, checked(json_document, "tags, and the form of the text between them")
    ] = None
    disable_any_whitespace: Annotated[bool, checked(flag, "no white space between JSON tokens")] = False
    disable_additional_properties: Annotated[
        bool, checked(flag, "allow only the JSON properties that the schema names")
    ] = False
    whitespace_pattern: Annotated[
        str | None,
        checked(text(forbidden="\0"), "regular expression for the white space between JSON tokens"),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.json_object is False:
            raise RequestError("json_object is False; it must be True or left out", "json_object")
        kinds = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
        given = [name for name in kinds if getattr(self, name) is not None]
        if len(given) != 1:
            raise RequestError(
                f"exactly one of {', '.join(kinds)} must be given, not {' and '.join(given) or 'none'}"
            )


class RepetitionDetectionParams(CheckedStruct, frozen=True, kw_only=True, omit_defaults=True):
    """When to end a request whose last tokens repeat one pattern. Raises RequestError."""

    max_pattern_size: Annotated[
        int, checked(whole(), "length of the longest pattern that is detected, in tokens; 0 = off")
    ] = 0
    min_pattern_size: Annotated[
        int,
        checked(whole(), "length of the shortest pattern that is detected, in tokens; 0 is the same as 1"),
    ] = 0
    min_count: Annotated[int, checked(whole(), "number of times in a row that a pattern must appear")] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_if(
            self.min_pattern_size > self.max_pattern_size,
            f"min_pattern_size is {self.min_pattern_size}; it must be at most max_pattern_size, which is "
            f"{self.max_pattern_size}",
        )
        _refuse_if(
            self.max_pattern_size > 0 and self.min_count < 2,
            f"min_count is {self.min_count}; it must be at least 2 if max_pattern_size is not 0",
        )


class SamplingParams(CheckedStruct, frozen=True, kw_only=True, omit_defaults=True):
    """How a request is sampled, when it ends, and what its outputs hold.

    Creating one raises RequestError, naming the field. None stands for the default of a field, unless the
    type of the field includes None. Values are stored in one form: a list as a tuple, a number as a plain int
    or float, and -1 for "off" or "none" as 0 or None.
    """

    # The number of answers, and their randomness.
    n: Annotated[int, checked(whole(1, MAX_ANSWERS), "number of answers to generate")] = 1
    seed: Annotated[
        int | None,
        checked(
            whole(-(2**63), 2**64 - 1, {-1: None}), "the same seed gives the same answer; -1 = a random seed"
        ),
    ] = None

    # The distribution that tokens are drawn from.
    temperature: Annotated[
        float,
        checked(
            number(0, 2),
            "0 = the most likely token; 1 = the model's probabilities; higher = more random",
        ),
    ] = 1.0
    top_p: Annotated[
        float,
        checked(
            number(0, 1, above=True),
            "sample from the most likely tokens that together have this probability; 1 = all",
        ),
    ] = 1.0
    top_k: Annotated[
        int, checked(whole(0, special={-1: 0}), "sample from this many of the most likely tokens; 0 = all")
    ] = 0
    min_p: Annotated[
        float,
        checked(
            number(0, 1),
            "drop tokens less likely than this times the most likely token's probability",
        ),
    ] = 0.0
    presence_penalty: Annotated[
        float, checked(number(-2, 2), "subtracted from the logits of tokens that the answer already contains")
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        checked(number(-2, 2), "subtracted from a token's logit for each time that the answer contains it"),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        checked(
            number(0, above=True),
            "above 1 = tokens of the prompt and the answer become less likely; 1 = off",
        ),
    ] = 1.0
    logit_bias: Annotated[
        Mapping[int, float] | None,
        checked(mapping(_token_key, number(-100, 100)), "token id → number that is added to its logit"),
    ] = None
    allowed_token_ids: Annotated[
        Sequence[int] | None,
        checked(items(_token_id, least=1, unique=True), "the only tokens that may be generated"),
    ] = None
    bad_words: Annotated[Sequence[str], checked(texts(), "texts that may not be generated")] = ()
    structured_outputs: Annotated[
        StructuredOutputsParams | None,
        checked(struct(StructuredOutputsParams), "constraint on the form of the text"),
    ] = None
    thinking_token_budget: Annotated[
        int | None, checked(whole(0, special={-1: None}), "most tokens of reasoning; -1 = no limit")
    ] = None

    # The end of an answer.
    max_tokens: Annotated[
        int | None, checked(whole(1), "most tokens to generate; none = up to the context length")
    ] = 16
    min_tokens: Annotated[int, checked(whole(), "least tokens to generate before the answer may end")] = 0
    stop: Annotated[
        Sequence[str],
        checked(texts(most=MAX_STOP_STRINGS), "texts that end the answer when they are generated"),
    ] = ()
    stop_token_ids: Annotated[
        Sequence[int], checked(_token_ids, "tokens that end the answer when they are generated")
    ] = ()
    ignore_eos: Annotated[bool, checked(flag, "do not end at the model's end-of-text token")] = False
    repetition_detection: Annotated[
        RepetitionDetectionParams | None,
        checked(struct(RepetitionDetectionParams), "end an answer that repeats itself"),
    ] = None

    # The outputs.
    logprobs: Annotated[
        int | None,
        checked(_logprob_count, "number of most likely tokens to report at each generated token; -1 = all"),
    ] = None
    prompt_logprobs: Annotated[
        int | None,
        checked(_logprob_count, "number of most likely tokens to report at each prompt token; -1 = all"),
    ] = None
    logprob_token_ids: Annotated[
        Sequence[int] | None,
        checked(
            items(_token_id, least=1, most=MAX_LOGPROB_TOKEN_IDS),
            "tokens to report instead of the most likely",
        ),
    ] = None
    detokenize: Annotated[bool, checked(flag, "turn tokens into text")] = True
    skip_special_tokens: Annotated[bool, checked(flag, "leave control tokens out of the answer's text")] = (
        True
    )
    spaces_between_special_tokens: Annotated[bool, checked(flag, "for compatibility; has no effect")] = True
    include_stop_str_in_output: Annotated[
        bool, checked(flag, "keep the stop string or token at the end of the answer")
    ] = False
    output_kind: Annotated[
        RequestOutputKind,
        checked(one_of(RequestOutputKind), "whether an output holds the whole answer or only its new part"),
    ] = RequestOutputKind.CUMULATIVE
    stream_interval: Annotated[
        int | None, checked(whole(1), "least number of tokens between two outputs")
    ] = None

    # The prompt and extensions.
    truncate_prompt_tokens: Annotated[
        int | None,
        checked(
            whole(1, special={-1: -1}),
            "keep only this many tokens, from the end of the prompt; -1 = as many as fit",
        ),
    ] = None
    skip_reading_prefix_cache: Annotated[
        bool | None, checked(flag, "compute the whole prompt; none = only if prompt_logprobs is set")
    ] = None
    extra_args: Annotated[Mapping[str, Any] | None, checked(plain_data, "arguments for extensions")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_if(
            self.max_tokens is not None and self.min_tokens > self.max_tokens,
            f"min_tokens is {self.min_tokens}; it must be at most max_tokens, which is {self.max_tokens}",
        )
        _refuse_if(
            bool(self.stop) and not self.detokenize,
            "stop needs text, but detokenize is False; set detokenize to True, or use stop_token_ids",
        )
        _refuse_if(
            self.logprob_token_ids is not None and self.logprobs not in (None, len(self.logprob_token_ids)),
            f"logprobs is {self.logprobs}; with logprob_token_ids it must be left out or be "
            "the number of those ids",
        )
        _refuse_if(
            self.prompt_logprobs is not None and self.skip_reading_prefix_cache is False,
            "skip_reading_prefix_cache is False, but prompt_logprobs need the whole prompt computed; "
            "leave it out",
        )

    @property
    def greedy(self) -> bool:
        """Whether every token is the most likely one."""
        return self.temperature < GREEDY_BELOW

    @property
    def reads_prefix_cache(self) -> bool:
        """Whether the prompt may use KV from the prefix cache."""
        if self.skip_reading_prefix_cache is None:
            return self.prompt_logprobs is None
        return not self.skip_reading_prefix_cache

    def for_answer(self, index: int) -> SamplingParams:
        """Return the parameters of a request for answer `index` of n alone.

        Its seed, if any, is (seed + index) modulo 2**64. Only the first answer asks for prompt logprobs.
        """
        seed = None if self.seed is None else (self.seed + index) % 2**64
        prompt_logprobs = self.prompt_logprobs if index == 0 else None
        return msgspec.structs.replace(self, n=1, seed=seed, prompt_logprobs=prompt_logprobs)

    def check_against(self, vocab_size: int, max_logprobs: int) -> None:
        """Check what depends on the model: token ids and numbers of logprobs (`max_logprobs` -1 = no limit).

        Raises RequestError, naming the field.
        """
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "logit_bias"):
            largest = max(getattr(self, name) or (0,))
            if largest >= vocab_size:
                raise RequestError(
                    f"{name} names token {largest}, out of vocabulary; ids are 0 to {vocab_size - 1}",
                    name,
                )
        limit = vocab_size if max_logprobs == ALL_LOGPROBS else max_logprobs
        for name in ("logprobs", "prompt_logprobs"):
            asked = getattr(self, name) or 0
            if (vocab_size if asked == ALL_LOGPROBS else asked) > limit:
                shown = f"{asked} (all {vocab_size} tokens)" if asked == ALL_LOGPROBS else asked
                raise RequestError(f"{name} is {shown}; this engine reports at most {limit}", name)


# Fields that neither the core nor the front end implements: field → the feature that does.
FIELD_FEATURES: Mapping[str, str] = {
    "presence_penalty": "penalties",
    "frequency_penalty": "penalties",
    "repetition_penalty": "penalties",
    "logit_bias": "logits_control",
    "allowed_token_ids": "logits_control",
    "bad_words": "logits_control",
    "min_tokens": "logits_control",
    "structured_outputs": "structured_output",
    "thinking_token_budget": "thinking_budget",
    "prompt_logprobs": "prompt_logprobs",
    "logprob_token_ids": "logprob_token_ids",
    "extra_args": "extra_args",
}


def required_features(params: SamplingParams) -> dict[str, str]:
    """Return the fields that need a feature and differ from their default: field → feature."""
    defaults = {field.name: field.default for field in field_rules(SamplingParams)}
    return {
        name: feature for name, feature in FIELD_FEATURES.items() if getattr(params, name) != defaults[name]
    }


def _refuse_if(contradiction: bool, message: str) -> None:
    """Raise RequestError if `contradiction`; `message` begins with the field's name."""
    if contradiction:
        raise RequestError(message, param=message.split()[0])
