"""The native sampler against the reference: tokens are ==, logprobs within 1e-9."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from octavo.backends.native.sampling import NativeSampler
from octavo.sampling.sampler import Sampler
from octavo.types.sampling import (
    INVALID_TOKEN_ID,
    NO_LOGPROBS,
    LogitBias,
    Penalties,
    SamplerOutput,
    SamplingMetadata,
    TokenLists,
    TokenLogprobs,
)
from tests.sampling.tables import penalty_tables

INF = math.inf
MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")
CHUNK = 2048  # csrc/kernels/sampling.h
SIZES = (1, 15, 64, 1003, CHUNK, 3 * CHUNK + 65)  # of vocabularies: blocks and chunks, whole and not


def make_metadata(rng: np.random.Generator, num_rows: int, **fixed: Any) -> SamplingMetadata:
    """Random parameters, in every combination; those in `fixed` are the same in all rows."""
    drawn = {
        "temperature": rng.choice([0.0, 1e-5, 0.3, 1.0, 2.0], num_rows),
        "top_k": rng.choice([0, 0, 1, 2, 40, 1000, 10**9], num_rows),
        "top_p": rng.choice([1.0, 1.0, 0.0, 1e-4, 0.5, 0.95, 1 - 2.0**-24], num_rows),
        "min_p": rng.choice([0.0, 0.0, 1e-30, 0.05, 0.5, 1.0], num_rows),
        "seeds": rng.integers(0, 2**64, num_rows, np.uint64),
        "positions": rng.integers(0, 2**40, num_rows),
        "num_logprobs": rng.choice([NO_LOGPROBS, 0, 1, 20, 10**6], num_rows),
    }
    types = ("float32", "int32", "float32", "float32", "uint64", "int64", "int32")
    return SamplingMetadata(
        **{
            name: np.full(num_rows, fixed.get(name, 0)).astype(dtype)
            if name in fixed
            else drawn[name].astype(dtype)
            for name, dtype in zip(drawn, types, strict=True)
        }
    )


def make_lists(rng: np.random.Generator, num_rows: int, vocab_size: int) -> TokenLists:
    lengths = rng.integers(0, 40, num_rows) * rng.integers(0, 2, num_rows)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return TokenLists(offsets, rng.integers(0, vocab_size, offsets[-1]).astype(np.int32))


def make_adjustments(rng: np.random.Generator, num_rows: int, vocab_size: int) -> dict[str, Any]:
    """A mask, biases and penalties; some rows have none of one or the other."""
    words = rng.integers(0, 2**32, (num_rows, -(-vocab_size // 32)), np.uint32)
    words[rng.random(num_rows) < 0.4] = 2**32 - 1
    words[:, 0] |= 1  # so that no row is left without a token
    biased = make_lists(rng, num_rows, vocab_size)
    neutral = rng.random(num_rows) < 0.3
    settings = [
        np.where(neutral, neutral_value, rng.choice(values, num_rows)).astype(np.float32)
        for neutral_value, values in ((1, [0.5, 1, 1.3]), (0, [-0.5, 0, 0.1]), (0, [-1, 0, 0.7]))
    ]
    return {
        "allowed": words,
        "bias": LogitBias(biased, rng.normal(0, 3, len(biased.token_ids)).astype(np.float32)),
        "penalties": make_penalties(rng, settings, vocab_size),
    }


def make_penalties(rng: np.random.Generator, settings: list[np.ndarray], vocab_size: int) -> Penalties:
    """Tables of two rows more than there are rows of logits, which use them in any order."""
    num_rows = len(settings[0])

    def tokens() -> list[int]:
        return rng.integers(0, vocab_size, rng.integers(0, 40) * rng.integers(0, 2)).tolist()

    tables = penalty_tables([(tokens(), tokens()) for _ in range(num_rows + 2)], vocab_size)
    return Penalties(*settings, rows=rng.permutation(num_rows + 2)[:num_rows], **tables)


def make_logits(rng: np.random.Generator, num_rows: int, vocab_size: int) -> np.ndarray:
    """Rows flat and peaked, with many equals, and with tokens that are ruled out: [num_rows, vocab_size]."""
    logits = rng.normal(0, 1, (num_rows, vocab_size)) * rng.choice([0.0, 0.5, 3.0, 10.0], (num_rows, 1))
    with_ties = rng.random(num_rows) < 0.4
    logits[with_ties] = np.round(logits[with_ties])
    logits[1:, 1:][rng.random((num_rows - 1, vocab_size - 1)) < 0.1] = -INF
    return logits.astype(np.float32)


def assert_same_logprobs(native: list[TokenLogprobs | None], reference: list[TokenLogprobs | None]) -> None:
    for ours, theirs in zip(native, reference, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert ours.token_ids == theirs.token_ids
            assert ours.rank == theirs.rank
            np.testing.assert_allclose(ours.logprobs, theirs.logprobs, rtol=1e-9, atol=1e-9)


def assert_same(native: SamplerOutput, reference: SamplerOutput) -> None:
    assert native.sampled_token_ids.tolist() == reference.sampled_token_ids.tolist()
    assert native.sampled_token_ids.dtype == reference.sampled_token_ids.dtype
    assert_same_logprobs(native.logprobs, reference.logprobs)


def as_lists(output: SamplerOutput) -> tuple[list[int], list[TokenLogprobs | None]]:
    return output.sampled_token_ids.tolist(), output.logprobs


@pytest.mark.parametrize("vocab_size", SIZES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("adjusted", [False, True])
class TestAgainstTheReference:
    def test_rows_of_every_kind_give_the_same_tokens_and_logprobs(
        self, device: Any, vocab_size: int, mode: str, adjusted: bool
    ) -> None:
        rng = np.random.default_rng(vocab_size)
        native = NativeSampler(device, None, mode)
        for num_rows in (1, 3, 64):
            metadata = make_metadata(rng, num_rows)
            if adjusted:
                metadata = replace(metadata, **make_adjustments(rng, num_rows, vocab_size))
            logits = make_logits(rng, num_rows, vocab_size)
            expected = Sampler(None, mode).forward(logits.copy(), metadata)
            assert_same(native.forward(logits, metadata), expected)

    def test_the_number_of_threads_changes_no_bit(
        self, devices: dict[int, Any], vocab_size: int, mode: str, adjusted: bool
    ) -> None:
        rng = np.random.default_rng(vocab_size)
        for num_rows in (1, 2, 7):
            metadata = make_metadata(rng, num_rows)
            if adjusted:
                metadata = replace(metadata, **make_adjustments(rng, num_rows, vocab_size))
            logits = make_logits(rng, num_rows, vocab_size)
            first, *others = (
                as_lists(NativeSampler(device, None, mode).forward(logits, metadata))
                for device in devices.values()
            )
            assert all(other == first for other in others)


class TestDraws:
    """A large vocabulary, many draws: where a bound that is a little too low would be found out."""

    @pytest.mark.parametrize("temperature", [1e-5, 3e-5, 7e-5, 0.01, 0.7, 2.0])
    @pytest.mark.parametrize("spread", [0.0, 1.0, 8.0])
    @pytest.mark.parametrize("center", [0.0, -1000.0])
    def test_without_filters(self, device: Any, temperature: float, spread: float, center: float) -> None:
        rng = np.random.default_rng(1)
        logits = rng.normal(center, spread, (100, 20_011)).astype(np.float32)
        metadata = make_metadata(
            rng, 100, temperature=temperature, top_k=0, top_p=1, min_p=0, num_logprobs=NO_LOGPROBS
        )
        expected = Sampler(None).forward(logits.copy(), metadata)
        assert_same(NativeSampler(device, None).forward(logits, metadata), expected)

    @pytest.mark.parametrize("top_k", [0, 3, 500, 15_000])
    @pytest.mark.parametrize("top_p", [0.3, 0.95, 1.0])
    @pytest.mark.parametrize("min_p", [0.0, 0.01])
    def test_with_filters(self, device: Any, top_k: int, top_p: float, min_p: float) -> None:
        rng = np.random.default_rng(2)
        logits = rng.normal(0, np.linspace(0.1, 8, 30)[:, None], (30, 20_011)).astype(np.float32)
        metadata = make_metadata(
            rng, 30, temperature=0.9, top_k=top_k, top_p=top_p, min_p=min_p, num_logprobs=10**6
        )
        mode = "processed_logprobs"  # so that what the filters keep is reported
        expected = Sampler(None, mode).forward(logits.copy(), metadata)
        assert_same(NativeSampler(device, None, mode).forward(logits, metadata), expected)

    def test_from_extreme_logits(self, device: Any) -> None:
        logits = np.array([[3e38, -3e38, 0], [-3e38, -INF, -3e38], [1e-45, 0, -1e-45]], np.float32)
        rng = np.random.default_rng(3)
        mode = "processed_logits"
        for temperature in [1e-5, 0.5, 2.0, 1e38] * 20:
            metadata = make_metadata(rng, 3, temperature=temperature, num_logprobs=3)
            expected = Sampler(None, mode).forward(logits.copy(), metadata)
            assert_same(NativeSampler(device, None, mode).forward(logits, metadata), expected)


class TestUnusableRows:
    @pytest.mark.parametrize("vocab_size", [3, CHUNK + 100])
    @pytest.mark.parametrize("adjusted", [False, True])
    def test_get_the_invalid_id_and_leave_their_neighbours_alone(
        self, device: Any, vocab_size: int, adjusted: bool
    ) -> None:
        rng = np.random.default_rng(4)
        logits = make_logits(rng, 12, vocab_size)
        logits[1, 0] = np.nan
        logits[4, -1] = np.nan
        logits[5, 1] = INF
        logits[7] = -INF
        logits[8] = np.nan
        metadata = make_metadata(rng, 12, num_logprobs=2)
        if adjusted:
            metadata = replace(metadata, **make_adjustments(rng, 12, vocab_size))
        output = NativeSampler(device, None).forward(logits, metadata)
        bad = [1, 4, 5, 7, 8]
        assert output.sampled_token_ids[bad].tolist() == [INVALID_TOKEN_ID] * 5
        assert [output.logprobs[row] for row in bad] == [None] * 5
        assert_same(output, Sampler(None).forward(logits.copy(), metadata))

    def test_are_those_too_that_a_mask_leaves_no_token(self, device: Any) -> None:
        metadata = replace(make_metadata(np.random.default_rng(5), 2), allowed=np.zeros((2, 2), np.uint32))
        output = NativeSampler(device, None).forward(np.zeros((2, 40), np.float32), metadata)
        assert as_lists(output) == ([INVALID_TOKEN_ID] * 2, [None] * 2)


@pytest.mark.parametrize("filling", [9.0, INF, math.nan])
@pytest.mark.parametrize("num_token_ids", [1, 40, 64, 70])
def test_padding_is_never_sampled_nor_reported(device: Any, filling: float, num_token_ids: int) -> None:
    rng = np.random.default_rng(6)
    logits = rng.normal(0, 1, (50, 64)).astype(np.float32)
    logits[:, num_token_ids:] = filling
    for mode, adjusted in itertools.product(MODES, [False, True]):
        metadata = make_metadata(rng, 50)
        if adjusted:
            metadata = replace(metadata, **make_adjustments(rng, 50, 64))
        output = NativeSampler(device, num_token_ids, mode).forward(logits, metadata)
        assert output.sampled_token_ids.max() < num_token_ids
        assert_same(output, Sampler(num_token_ids, mode).forward(logits.copy(), metadata))


def test_logits_are_only_read(device: Any) -> None:
    rng = np.random.default_rng(7)
    logits = make_logits(rng, 8, 500)
    before = logits.copy()
    metadata = replace(make_metadata(rng, 8), **make_adjustments(rng, 8, 500))
    NativeSampler(device, 450).forward(logits, metadata)
    assert logits.tobytes() == before.tobytes()


def test_tables_of_penalties_are_only_read_and_may_grow_between_steps(device: Any) -> None:
    rng = np.random.default_rng(8)
    native = NativeSampler(device, None, "processed_logits")
    metadata = replace(make_metadata(rng, 3, num_logprobs=100), **make_adjustments(rng, 3, 100))
    penalties = metadata.penalties
    assert penalties is not None
    for _ in range(5):
        logits = make_logits(rng, 3, 100)
        before = penalties.seen.copy(), penalties.counts.copy()
        output = native.forward(logits, metadata)
        assert_same(output, Sampler(None, "processed_logits").forward(logits.copy(), metadata))
        np.testing.assert_array_equal(penalties.seen, before[0])
        np.testing.assert_array_equal(penalties.counts, before[1])
        for row, token in zip(penalties.rows, rng.integers(0, 100, 3), strict=True):
            if penalties.counts[row, token] == 0:
                penalties.seen[row, penalties.num_seen[row]] = token
                penalties.num_seen[row] += 1
                penalties.counts[row, token] = 1
            penalties.counts[row, token] += 1


def test_a_sampler_takes_vocabularies_of_different_sizes(device: Any) -> None:
    rng = np.random.default_rng(9)
    native = NativeSampler(device, None)
    for vocab_size in (100, 5000, 7, 5001):
        metadata = replace(make_metadata(rng, 5), **make_adjustments(rng, 5, vocab_size))
        logits = make_logits(rng, 5, vocab_size)
        assert_same(native.forward(logits, metadata), Sampler(None).forward(logits.copy(), metadata))


def test_a_step_without_rows_is_empty(device: Any) -> None:
    metadata = make_metadata(np.random.default_rng(0), 0)
    assert as_lists(NativeSampler(device, None).forward(np.empty((0, 8), np.float32), metadata)) == ([], [])


class TestGatherLogprobs:
    @pytest.mark.parametrize("vocab_size", SIZES)
    @pytest.mark.parametrize("num_logprobs", [0, 1, 20, 10**6])
    def test_agrees_with_the_reference(self, device: Any, vocab_size: int, num_logprobs: int) -> None:
        rng = np.random.default_rng(vocab_size)
        for num_rows in (1, 5):
            logits = make_logits(rng, num_rows, vocab_size)
            token_ids = rng.integers(0, vocab_size, num_rows)
            assert_same_logprobs(
                NativeSampler(device, None).gather_logprobs(logits, token_ids, num_logprobs),
                Sampler(None).gather_logprobs(logits.copy(), token_ids, num_logprobs),
            )

    def test_of_a_token_that_cannot_be_chosen_is_minus_infinity(self, device: Any) -> None:
        logits = np.array([[0, -INF, 0, 5]], np.float32)
        for token in (1, 3):  # ruled out, and padding
            given = logits, np.array([token]), 4
            (logprobs,) = NativeSampler(device, 3).gather_logprobs(*given)
            assert (logprobs.token_ids, logprobs.rank) == ([token, 0, 2], 4)
            assert logprobs.logprobs == pytest.approx([-INF, math.log(0.5), math.log(0.5)])
            assert_same_logprobs([logprobs], Sampler(3).gather_logprobs(logits.copy(), *given[1:]))

    @pytest.mark.parametrize("logits", [[1, math.nan, 2], [1, INF, 2], [-INF, -INF, -INF]])
    def test_of_an_unusable_row_are_not_numbers(self, device: Any, logits: list[float]) -> None:
        given = np.array([logits, [0, 0, 0]], np.float32), np.array([0, 0]), 1
        bad, good = NativeSampler(device, None).gather_logprobs(*given)
        assert all(math.isnan(value) for value in bad.logprobs)
        assert good.logprobs == pytest.approx([math.log(1 / 3)] * 2)

    @pytest.mark.parametrize("token_id", [-1, 8, 2**40])
    def test_refuses_tokens_outside_the_vocabulary(self, device: Any, token_id: int) -> None:
        with pytest.raises(ValueError, match="token_ids holds"):
            NativeSampler(device, None).gather_logprobs(np.zeros((1, 8), np.float32), np.array([token_id]), 1)


def in_bias(**changed: Any) -> Callable[[SamplingMetadata], SamplingMetadata]:
    """Metadata with a bias for two rows whose lists are changed."""
    lists = TokenLists(np.array([0, 1, 2]), np.array([3, 4], np.int32))
    return lambda metadata: replace(
        metadata, bias=LogitBias(replace(lists, **changed), np.zeros(2, np.float32))
    )


def in_penalties(**changed: Any) -> Callable[[SamplingMetadata], SamplingMetadata]:
    """Metadata with penalties for two rows whose arrays are changed."""
    ones = np.ones(2, np.float32)
    tables = penalty_tables([([0], [1]), ([2], [])], 40)
    penalties = Penalties(ones, ones, ones, rows=np.array([1, 0]), **tables)
    return lambda metadata: replace(metadata, penalties=replace(penalties, **changed))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda m: replace(m, temperature=m.temperature.astype(np.float64)), "temperature"),
        (lambda m: replace(m, top_k=m.top_k[:1]), "top_k"),
        (lambda m: replace(m, top_p=m.top_p[:, None]), "top_p"),
        (lambda m: replace(m, min_p=0.5), "min_p"),
        (lambda m: replace(m, seeds=m.seeds.astype(np.int64)), "seeds"),
        (lambda m: replace(m, positions=np.repeat(m.positions, 2)[::2]), "positions"),
        (lambda m: replace(m, num_logprobs=np.array([0, -2], np.int32)), "num_logprobs"),
        *(
            (lambda m, bad=bad, name=name: replace(m, **{name: np.array([1, bad], np.float32)}), name)
            for name, bad in [
                ("temperature", -1),
                ("temperature", math.nan),
                ("temperature", INF),
                ("temperature", 1e-45),
                ("top_p", -0.5),
                ("top_p", 1.5),
                ("top_p", math.nan),
                ("min_p", -0.5),
                ("min_p", math.nan),
            ]
        ),
        (lambda m: replace(m, top_k=np.array([0, -1], np.int32)), "top_k"),
        (lambda m: replace(m, allowed=np.zeros((2, 1), np.uint32)), "allowed"),
        (lambda m: replace(m, allowed=np.zeros((2, 2), np.int32)), "allowed"),
        (in_bias(offsets=np.array([0, 2])), "bias.tokens.offsets"),
        (in_bias(offsets=np.array([0, 3, 2])), "bias.tokens.offsets"),
        (in_bias(offsets=np.array([0, 1, 3])), "bias.tokens.offsets"),
        (in_bias(offsets=np.array([1, 1, 2])), "bias.tokens.offsets"),
        (in_bias(token_ids=np.array([3, 4])), "bias.tokens.token_ids"),
        (in_bias(offsets=np.array([0, 1, 1]), token_ids=np.array([3], np.int32)), "bias.values"),
        (in_penalties(repetition=np.ones(3, np.float32)), "penalties.repetition"),
        (in_penalties(rows=np.array([1])), "penalties.rows"),
        (in_penalties(rows=np.array([0, 2])), "penalties.rows"),
        (in_penalties(rows=np.array([-1, 0])), "penalties.rows"),
        (in_penalties(seen=np.zeros((2, 4))), "penalties.seen"),
        (in_penalties(num_seen=np.zeros(3, np.int64)), "penalties.num_seen"),
        (in_penalties(num_seen=np.array([0, 41])), "penalties.num_seen"),
        (in_penalties(num_seen=np.array([-1, 0])), "penalties.num_seen"),
        (in_penalties(counts=np.zeros((2, 40), np.int64)), "penalties.counts"),
        (in_penalties(counts=np.zeros((3, 40), np.int32)), "penalties.counts"),
    ],
)
def test_arrays_of_the_wrong_kind_are_refused_by_name(
    device: Any, change: Callable[[SamplingMetadata], SamplingMetadata], named: str
) -> None:
    metadata = change(make_metadata(np.random.default_rng(0), 2))
    with pytest.raises(ValueError, match=rf"^{named} "):
        NativeSampler(device, None).forward(np.zeros((2, 40), np.float32), metadata)


@pytest.mark.parametrize(
    "logits",
    [
        np.zeros(40, np.float32),
        np.zeros((2, 40)),
        np.zeros((40, 2), np.float32).T,
        np.zeros((2, 80), np.float32)[:, ::2],
        np.zeros((2, 0), np.float32),
    ],
)
def test_logits_of_the_wrong_kind_are_refused(device: Any, logits: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"^logits "):
        NativeSampler(device, None).forward(logits, make_metadata(np.random.default_rng(0), 2))


@pytest.mark.parametrize("num_counts", [5, 9])
def test_tokens_outside_the_vocabulary_or_the_table_are_passed_over(device: Any, num_counts: int) -> None:
    outside = [-1, 8, 2**31 - 1]
    lists = TokenLists(np.array([0, 4]), np.array([*outside, 2], np.int32))
    one = np.ones(1, np.float32)
    counts = np.full((1, num_counts), 2, np.int32)
    seen = np.array([[*outside, 5, 2]], np.int32)
    metadata = replace(
        make_metadata(np.random.default_rng(0), 1, temperature=0, num_logprobs=8),
        bias=LogitBias(lists, np.full(4, 5, np.float32)),
        penalties=Penalties(2 * one, one, one, np.array([0]), seen, np.array([5]), counts),
    )
    output = NativeSampler(device, None, "processed_logits").forward(np.zeros((1, 8), np.float32), metadata)
    assert output.logprobs[0] is not None
    of_token_5 = 0 if num_counts == 5 else -2
    assert output.logprobs[0].logprobs == [0.5] * 2 + [0] * 6 + [of_token_5]
