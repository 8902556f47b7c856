"""`SamplingParams` and their like: what a field may hold, and what follows from it."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import pytest

from octavo.errors import RequestError
from octavo.types.options import RequestOptions
from octavo.types.params import (
    FIELD_FEATURES,
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
    required_features,
)
from octavo.types.rules import CheckedStruct, field_rules
from tests.types.param_values import ACCEPTED, DEEP, HUGE, REFUSED, nested


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (SamplingParams, "temp", "SamplingParams has no field 'temp'; did you mean temperature?"),
        (SamplingParams, "top", "SamplingParams has no field 'top'; did you mean top_p or top_k?"),
        (SamplingParams, "maxtokens", "'maxtokens'; did you mean max_tokens or min_tokens"),
        (StructuredOutputsParams, "regx", "StructuredOutputsParams has no field 'regx'; did you mean regex?"),
        (RepetitionDetectionParams, "xyz", "'xyz'; there are max_pattern_size, min_pattern_size, min_count"),
        (RequestOptions, "deadline", "RequestOptions has no field 'deadline'; did you mean deadline_s?"),
    ],
)
def test_an_unknown_field_is_refused_with_similar_names(
    kind: type[CheckedStruct], name: str, message: str
) -> None:
    with pytest.raises(RequestError, match=re.escape(message)) as caught:
        kind(**{name: 1})
    assert caught.value.param == name


def test_a_field_inside_that_there_is_not_is_refused_in_the_same_way() -> None:
    message = r"structured_outputs: StructuredOutputsParams has no field 'regx'; did you mean regex\?"
    with pytest.raises(RequestError, match=message) as caught:
        SamplingParams(structured_outputs={"regx": "a"})
    assert caught.value.param == "structured_outputs"


def cases(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}-{i}") for name in table for i, value in enumerate(table[name])
    ]


def test_the_tables_of_these_tests_cover_every_field() -> None:
    assert set(REFUSED) == set(ACCEPTED) == set(SamplingParams.__struct_fields__)


@pytest.mark.parametrize(("name", "value"), cases(REFUSED))
def test_a_bad_value_is_refused_by_the_fields_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert str(caught.value).startswith(name)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("name", "value"), cases(ACCEPTED))
def test_a_good_value_is_stored_and_survives_the_wire(name: str, value: Any) -> None:
    params = SamplingParams(**{name: value})
    assert getattr(params, name) == value
    assert type(getattr(params, name)) in (type(value), int, float)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


@pytest.mark.parametrize(
    ("name", "given", "stored"),
    [
        ("seed", -1, None),
        ("top_k", -1, 0),
        ("thinking_token_budget", -1, None),
        ("logprobs", True, 1),
        ("logprobs", False, None),
        ("prompt_logprobs", True, 1),
        ("stop", "ab", ("ab",)),
        ("stop", ["b", "a", "b"], ("b", "a")),
        ("bad_words", "ab", ("ab",)),
        ("stop_token_ids", [5, 3, 5], (5, 3)),
        ("allowed_token_ids", np.array([4, 2]), (4, 2)),
        ("logit_bias", {"17": 3}, {17: 3.0}),
        ("logit_bias", {}, None),
        ("extra_args", {}, None),
        ("output_kind", "delta", RequestOutputKind.DELTA),
        ("structured_outputs", {"choice": ["a", "b"]}, StructuredOutputsParams(choice=("a", "b"))),
        (
            "repetition_detection",
            {"max_pattern_size": 2, "min_count": 3},
            RepetitionDetectionParams(max_pattern_size=2, min_count=3),
        ),
    ],
)
def test_stored_values_are_normalized(name: str, given: Any, stored: Any) -> None:
    value = getattr(SamplingParams(**{name: given}), name)
    assert value == stored
    assert type(value) is type(stored)


@pytest.mark.parametrize("name", [name for name in SamplingParams.__struct_fields__ if name != "max_tokens"])
def test_none_stands_for_the_default(name: str) -> None:
    assert SamplingParams(**{name: None}) == SamplingParams()


def test_max_tokens_is_16_unless_none_gives_the_rest_of_the_context() -> None:
    assert SamplingParams().max_tokens == 16
    assert SamplingParams(max_tokens=None).max_tokens is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": 3}, "temperature is 3; it must be a number, at least 0 and at most 2"),
        ({"top_p": 0}, "top_p is 0; it must be a number, more than 0 and at most 1"),
        ({"top_k": -2}, "top_k is -2; it must be a whole number from 0 to 2147483647, or -1"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; it must be a finite number, more than 0"),
        ({"ignore_eos": 1}, "ignore_eos is 1; it must be true or false"),
        ({"stop": ["a", ""]}, "stop[1] is ''; it must be non-empty text"),
        ({"stop": list("abcdefghijklmnopq")}, "stop has 17 entries; it must have at most 16"),
        ({"allowed_token_ids": []}, "allowed_token_ids has 0 entries; it must have at least 1"),
        (
            {"logit_bias": {7: 200}},
            "logit_bias[7] is 200; it must be a number, at least -100 and at most 100",
        ),
        ({"logit_bias": {7: 1, "7": 2}}, "logit_bias names 7 twice; each key may appear once"),
        ({"output_kind": "all"}, "output_kind is 'all'; it must be one of cumulative, delta, final_only"),
        ({"n": HUGE}, "n is a number of thousands of digits; it must be a whole number from 1 to 16384"),
        ({"min_tokens": 20}, "min_tokens is 20; it must be at most max_tokens, which is 16"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**given)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"stop": "a", "detokenize": False}, "stop"),
        ({"logprob_token_ids": [1, 2], "logprobs": 3}, "logprobs"),
        ({"prompt_logprobs": 1, "skip_reading_prefix_cache": False}, "skip_reading_prefix_cache"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(given: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**given)
    assert caught.value.param == field


@pytest.mark.parametrize(
    "given",
    [
        {"min_tokens": 5, "max_tokens": 5},
        {"min_tokens": 500, "max_tokens": None},
        {"stop_token_ids": [1], "detokenize": False},
        {"logprob_token_ids": [1, 2], "logprobs": 2},
        {"n": 4, "temperature": 0},
    ],
)
def test_fields_that_go_together_are_accepted(given: dict[str, Any]) -> None:
    SamplingParams(**given)


class TestStructuredOutputs:
    @pytest.mark.parametrize(
        "given",
        [
            {"json": {"type": "object"}},
            {"json": '{"type": "object"}'},
            {"json": {"b": 1, **nested(64)}},
            {"regex": "[a-z]+"},
            {"choice": ("yes", "no")},
            {"grammar": 'root ::= "a"'},
            {"json_object": True},
            {"structural_tag": {"type": "structural_tag"}},
        ],
    )
    def test_one_kind_is_accepted_and_survives_the_wire(self, given: dict[str, Any]) -> None:
        params = StructuredOutputsParams(**given)
        assert {name: getattr(params, name) for name in given} == given
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=StructuredOutputsParams) == params

    @pytest.mark.parametrize(
        "given",
        [
            {"json": ""},
            {"json": "  "},
            {"json": "{"},
            {"json": '"x"'},
            {"json": []},
            {"json": {}},
            {"json": nested(65)},
            {"json": f'{{"a": {DEEP}}}'},
            {"json": f'{{"a": {"[" * 100_000}'},
            {"json": {"a": 2**70}},
            {"regex": ""},
            {"regex": "a\0"},
            {"choice": []},
            {"choice": "ab"},
            {"choice": [""]},
            {"grammar": " \n"},
            {"json_object": False},
            {"json_object": 1},
            {"structural_tag": " "},
            {"regex": "a", "whitespace_pattern": ""},
        ],
    )
    def test_a_bad_value_is_refused_by_the_fields_name(self, given: dict[str, Any]) -> None:
        with pytest.raises(RequestError) as caught:
            StructuredOutputsParams(**given)
        assert caught.value.param in given

    @pytest.mark.parametrize("given", [{}, {"disable_any_whitespace": True}, {"regex": "a", "grammar": "b"}])
    def test_exactly_one_kind_must_be_given(self, given: dict[str, Any]) -> None:
        with pytest.raises(RequestError, match=r"exactly one of json, regex, .* must be given"):
            StructuredOutputsParams(**given)

    def test_an_error_inside_names_both_fields(self) -> None:
        with pytest.raises(RequestError, match="structured_outputs: regex is ''; it must be"):
            SamplingParams(structured_outputs={"regex": ""})


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (9e-6, True), (1e-5, False), (0.01, False)])
def test_greedy_is_a_temperature_below_a_hundred_thousandth(temperature: float, greedy: bool) -> None:
    params = SamplingParams(temperature=temperature, top_p=0.5)
    assert params.greedy is greedy
    assert (params.temperature, params.top_p) == (temperature, 0.5)


@pytest.mark.parametrize(
    ("given", "reads"),
    [
        ({}, True),
        ({"prompt_logprobs": 0}, False),
        ({"skip_reading_prefix_cache": True}, False),
        ({"skip_reading_prefix_cache": False}, True),
    ],
)
def test_the_prefix_cache_is_not_read_where_prompt_logprobs_are_wanted(
    given: dict[str, Any], reads: bool
) -> None:
    assert SamplingParams(**given).reads_prefix_cache is reads


class TestForAnswer:
    def test_each_answer_is_alone_and_has_a_seed_of_its_own(self) -> None:
        params = SamplingParams(n=3, seed=40, temperature=0.5)
        assert [params.for_answer(index) for index in (0, 2)] == [
            SamplingParams(seed=40, temperature=0.5),
            SamplingParams(seed=42, temperature=0.5),
        ]

    def test_seeds_wrap_around(self) -> None:
        assert SamplingParams(n=2, seed=2**64 - 1).for_answer(1).seed == 0
        assert SamplingParams(n=2, seed=-2).for_answer(1).seed == 2**64 - 1

    def test_without_a_seed_there_is_none(self) -> None:
        assert SamplingParams(n=2).for_answer(1) == SamplingParams()


class TestCheckAgainst:
    @pytest.mark.parametrize(
        ("given", "field"),
        [
            ({"stop_token_ids": [3, 100]}, "stop_token_ids"),
            ({"allowed_token_ids": [100]}, "allowed_token_ids"),
            ({"logprob_token_ids": [100]}, "logprob_token_ids"),
            ({"logit_bias": {100: 1}}, "logit_bias"),
        ],
    )
    def test_ids_out_of_vocabulary_are_refused(self, given: dict[str, Any], field: str) -> None:
        params = SamplingParams(**given)
        params.check_against(vocab_size=101, max_logprobs=20)
        with pytest.raises(RequestError, match="token 100, out of vocabulary; ids are 0 to 99") as caught:
            params.check_against(vocab_size=100, max_logprobs=20)
        assert caught.value.param == field

    @pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
    @pytest.mark.parametrize(
        ("asked", "max_logprobs", "allowed"),
        [
            (20, 20, True),
            (21, 20, False),
            (0, 0, True),
            (1, 0, False),
            (-1, 20, False),
            (-1, 100, True),
            (-1, -1, True),
            (100, -1, True),
            (1000000, -1, False),
        ],
    )
    def test_logprobs_are_limited(self, field: str, asked: int, max_logprobs: int, allowed: bool) -> None:
        params = SamplingParams(**{field: asked})
        if allowed:
            params.check_against(100, max_logprobs)
            return
        limit = 100 if max_logprobs == -1 else max_logprobs
        with pytest.raises(RequestError, match=f"^{field} is {asked}.* at most {limit}$") as caught:
            params.check_against(100, max_logprobs)
        assert caught.value.param == field


class TestRequiredFeatures:
    def test_plain_parameters_need_none(self) -> None:
        params = SamplingParams(
            temperature=0.5, top_p=0.9, top_k=5, min_p=0.1, seed=1, stop="a", logprobs=2, ignore_eos=True, n=2
        )
        assert required_features(params) == {}

    @pytest.mark.parametrize("field", FIELD_FEATURES)
    def test_a_field_set_to_more_than_its_default_needs_its_feature(self, field: str) -> None:
        assert required_features(SamplingParams(**{field: ACCEPTED[field][-1]})) == {
            field: FIELD_FEATURES[field]
        }

    def test_an_empty_bias_and_a_zero_penalty_need_none(self) -> None:
        params = SamplingParams(
            logit_bias={}, presence_penalty=0, repetition_penalty=1, bad_words=[], min_tokens=0
        )
        assert required_features(params) == {}


@pytest.mark.parametrize("kind", [SamplingParams, StructuredOutputsParams, RepetitionDetectionParams])
def test_every_field_has_a_line_of_help(kind: type[msgspec.Struct]) -> None:
    rules = field_rules(kind)
    assert [rule.name for rule in rules] == list(kind.__struct_fields__)
    assert all(0 < len(rule.help) < 80 and "\n" not in rule.help for rule in rules)
