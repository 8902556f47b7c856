"""Values that fields of `SamplingParams` refuse and accept."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from octavo.types.params import RepetitionDetectionParams, RequestOutputKind, StructuredOutputsParams

NAN, INF = math.nan, math.inf
HUGE = 10**5000  # more digits than Python prints
DEEP = "[" * 100 + "]" * 100


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


# What each field refuses; next to the edges of its range, which it accepts.
REFUSED: dict[str, list[Any]] = {
    "n": [0, -1, 16385, 1.0, True, "2", HUGE],
    "seed": [1.5, True, "7", 2**64, -(2**63) - 1, HUGE],
    "temperature": [-0.1, 2.1, 999999, NAN, INF, -INF, True, "1", 10**400, [1]],
    "top_p": [0, -0.1, 1.0001, NAN, INF, True, "1"],
    "top_k": [-2, 2.5, 2.0, True, NAN, 2**31, "4"],
    "min_p": [-0.1, 1.5, NAN, INF, True],
    "presence_penalty": [-2.1, 2.1, 1e9, NAN, INF, False],
    "frequency_penalty": [-2.1, 2.1, NAN, INF, False],
    "repetition_penalty": [0, -1, NAN, INF, True, HUGE],
    "logit_bias": [
        [],
        {1: 100.5},
        {1: -101},
        {1: NAN},
        {1: True},
        {1: "2"},
        {-1: 1},
        {"x": 1},
        {"1.0": 1},
        {"²": 1},
        {"9" * 5000: 1},
        {1.0: 1},
        {True: 1},
        {1: 1, "1": 2},
    ],
    "allowed_token_ids": [[], [-1], [1.0], [True], ["1"], 5, "12", [2**31]],
    "bad_words": [[""], ["a", 3], 5, b"a", {"a": 1}, ["\ud800"]],
    "structured_outputs": [
        "json",
        {},
        {"regx": "a"},
        {HUGE: 1},
        {"regex": "a", "choice": ["b"]},
        {"regex": ""},
        True,
    ],
    "thinking_token_budget": [-2, 1.0, True, "5"],
    "max_tokens": [0, -1, 1.5, True, INF],
    "min_tokens": [-1, 17, 1.0, True],
    "stop": ["", ["a", ""], [1], 5, ["a", None], [chr(97 + i) for i in range(17)], b"a", {"a": 1}, "\udfff"],
    "stop_token_ids": [[-1], [1.5], [True], ["1"], 3, "3"],
    "ignore_eos": [1, 0, "true", 1.0],
    "repetition_detection": [
        5,
        {"max_pattern_size": 3, "min_count": 1},
        {"max_pattern_size": 3, "min_pattern_size": 4, "min_count": 2},
        {"max_pattern_size": -1},
        {"max_pattern_size": 2.0},
        {"size": 3},
    ],
    "logprobs": [-2, 1.0, "3", NAN],
    "prompt_logprobs": [-2, 1.0, "3"],
    "logprob_token_ids": [[], [-1], list(range(129)), [True]],
    "detokenize": [1, "yes"],
    "skip_special_tokens": [1],
    "spaces_between_special_tokens": [0],
    "include_stop_str_in_output": ["no"],
    "output_kind": ["all", 1, True, ["delta"]],
    "stream_interval": [0, -1, 1.5, True],
    "truncate_prompt_tokens": [0, -7, 1.5, True],
    "skip_reading_prefix_cache": [1, "yes"],
    "extra_args": [
        5,
        [1],
        {1: 2},
        {"a": {1: 2}},
        {"a": 2**64},
        {"a": [-(2**63) - 1]},
        {"a": NAN},
        {"a": object()},
        {"a": "\ud800"},
        {"\ud800": 1},
        nested(65),
    ],
}  # fmt: skip

ACCEPTED: dict[str, list[Any]] = {
    "n": [1, 16384, np.int64(3)],
    "seed": [None, 0, 7, -2, 2**64 - 1, -(2**63)],
    "temperature": [0, 0.0, 1e-9, 2, 0.7, np.float32(0.5)],
    "top_p": [1e-4, 1, 1.0],
    "top_k": [0, 1, 49152, 10**9],
    "min_p": [0, 0.5, 1.0],
    "presence_penalty": [-2, 2, 0.5],
    "frequency_penalty": [-2, 2, 0.5],
    "repetition_penalty": [0.5, 1.1, 1e6],
    "logit_bias": [None, {1: 100, 2: -100}],
    "allowed_token_ids": [None, (1,), (0, 2**31 - 1)],
    "bad_words": [(), ("a", "b")],
    "structured_outputs": [None, StructuredOutputsParams(regex="a+")],
    "thinking_token_budget": [None, 0, 100],
    "max_tokens": [None, 1, 10**9],
    "min_tokens": [0, 16],
    "stop": [(), ("a",), tuple(chr(97 + i) for i in range(16)), ("\n", " ")],
    "stop_token_ids": [(), (0, 5)],
    "ignore_eos": [True],
    "repetition_detection": [None, RepetitionDetectionParams(max_pattern_size=8, min_count=3)],
    "logprobs": [None, 0, 20, -1, 10**6],
    "prompt_logprobs": [None, 0, 20, -1],
    "logprob_token_ids": [None, (5, 3, 5), tuple(range(128))],
    "detokenize": [False],
    "skip_special_tokens": [False],
    "spaces_between_special_tokens": [False],
    "include_stop_str_in_output": [True],
    "output_kind": list(RequestOutputKind),
    "stream_interval": [None, 1, 50],
    "truncate_prompt_tokens": [None, 1, 5, -1],
    "skip_reading_prefix_cache": [None, True, False],
    "extra_args": [None, {"a": [1, -(2**63), 2**64 - 1, 0.5, "x", True, None, {"b": []}]}, nested(64)],
}  # fmt: skip
