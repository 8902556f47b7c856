import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

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
MASK = 2**64 - 1


@dataclass(frozen=True)
class Row:
    """How one row is sampled."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    position: int = 0
    num_logprobs: int = NO_LOGPROBS


def metadata(rows: Iterable[Row]) -> SamplingMetadata:
    rows = list(rows)
    return SamplingMetadata(
        temperature=np.array([row.temperature for row in rows], np.float32),
        top_k=np.array([row.top_k for row in rows], np.int32),
        top_p=np.array([row.top_p for row in rows], np.float32),
        min_p=np.array([row.min_p for row in rows], np.float32),
        seeds=np.array([row.seed for row in rows], np.uint64),
        positions=np.array([row.position for row in rows], np.int64),
        num_logprobs=np.array([row.num_logprobs for row in rows], np.int32),
    )


def sample(
    logits: npt.ArrayLike, rows: Iterable[Row], mode: str = "raw_logprobs", num_token_ids: int | None = None
) -> SamplerOutput:
    return Sampler(num_token_ids, mode).forward(np.array(logits, np.float32), metadata(rows))


def sample_many(logits: list[float], row: Row, count: int) -> list[int]:
    """Tokens drawn from the same logits at `count` positions."""
    rows = [replace(row, position=position) for position in range(count)]
    return sample([logits] * count, rows).sampled_token_ids.tolist()


def result(output: SamplerOutput, row: int) -> tuple[int, TokenLogprobs | None]:
    return output.sampled_token_ids[row], output.logprobs[row]


GREEDY = Row(temperature=0)


class TestGreedy:
    def test_takes_the_most_likely_token_and_the_first_of_equals(self) -> None:
        output = sample([[1, 5, 2, 0], [3, 4, 4, 1], [-INF, -INF, -2, -INF]], [GREEDY] * 3)
        assert output.sampled_token_ids.tolist() == [1, 1, 2]
        assert output.sampled_token_ids.dtype == np.int64

    def test_ignores_seed_and_filters(self) -> None:
        rows = [Row(temperature=0, top_k=3, top_p=0.9, min_p=0.1, seed=seed) for seed in range(20)]
        assert set(sample([[1, 1.1, 1.05, 0]] * 20, rows).sampled_token_ids.tolist()) == {1}

    @pytest.mark.parametrize("narrow", [Row(top_k=1), Row(top_p=1e-4), Row(min_p=1.0)])
    def test_a_choice_of_one_is_greedy(self, narrow: Row) -> None:
        logits = np.random.default_rng(1).integers(0, 20, (60, 37)).astype(np.float32)  # most rows have ties
        rows = [replace(narrow, temperature=2.0, seed=seed) for seed in range(60)]
        expected = sample(logits, [GREEDY] * 60).sampled_token_ids
        assert sample(logits, rows).sampled_token_ids.tolist() == expected.tolist()


class TestFilters:
    def test_top_k_past_the_vocabulary_and_off_are_the_same(self) -> None:
        logits = np.random.default_rng(2).standard_normal(23).tolist()
        off = sample_many(logits, Row(top_k=0), 100)
        assert len(set(off)) > 5
        for top_k in (23, 24, 10**9):
            assert sample_many(logits, Row(top_k=top_k), 100) == off

    def test_min_p_is_measured_after_temperature(self) -> None:
        logits = [math.log(0.9), math.log(0.1)]
        assert set(sample_many(logits, Row(min_p=0.2), 200)) == {0}
        assert set(sample_many(logits, Row(min_p=0.2, temperature=2), 200)) == {0, 1}  # shares 3/4 and 1/4

    def test_top_p_is_a_share_of_what_top_k_left(self) -> None:
        logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
        assert set(sample_many(logits, Row(top_p=0.5), 200)) == {0, 1}
        assert set(sample_many(logits, Row(top_p=0.5, top_k=2), 200)) == {0}  # 4/7 of what is left

    def test_top_k_is_taken_from_what_min_p_left(self) -> None:
        logits = [math.log(p) for p in (0.6, 0.3, 0.1)]
        assert set(sample_many(logits, Row(min_p=0.4, top_k=3), 300)) == {0, 1}


class TestDistribution:
    PROBS = (0.25, 0.02, 0.2, 0.08, 0.15, 0.12, 0.18)

    # The tokens each filter leaves, and the 99.9 % point of chi-square for their number less one.
    @pytest.mark.parametrize(
        ("row", "left", "limit"),
        [
            (Row(), [0, 1, 2, 3, 4, 5, 6], 22.46),
            (Row(temperature=0.5), [0, 1, 2, 3, 4, 5, 6], 22.46),
            (Row(temperature=2.0), [0, 1, 2, 3, 4, 5, 6], 22.46),
            (Row(top_k=3), [0, 2, 6], 13.82),
            (Row(top_p=0.6), [0, 2, 6], 13.82),
            (Row(top_p=0.7), [0, 2, 4, 6], 16.27),
            (Row(min_p=0.4), [0, 2, 4, 5, 6], 18.47),
        ],
    )
    @pytest.mark.parametrize("vary", ["position", "seed"])
    def test_tokens_come_as_often_as_they_are_likely(
        self, row: Row, left: list[int], limit: float, vary: str
    ) -> None:
        count = 4000
        logits = [math.log(p) for p in self.PROBS]
        rows = [replace(row, **{vary: number}) for number in range(count)]
        drawn = sample([logits] * count, rows).sampled_token_ids
        expected = np.zeros(len(logits))
        expected[left] = np.array(self.PROBS)[left] ** (1 / row.temperature)
        expected *= count / expected.sum()
        counts = np.bincount(drawn, minlength=len(logits))
        assert set(np.flatnonzero(counts)) == set(left)
        assert ((counts - expected)[left] ** 2 / expected[left]).sum() < limit


class TestRandomness:
    LOGITS = np.random.default_rng(3).standard_normal(500).tolist()

    def test_the_same_seed_and_position_give_the_same_token(self) -> None:
        assert sample_many(self.LOGITS, Row(seed=7), 50) == sample_many(self.LOGITS, Row(seed=7), 50)

    def test_different_seeds_give_different_texts(self) -> None:
        texts = {tuple(sample_many(self.LOGITS, Row(seed=seed), 8)) for seed in (0, 1, 2, 2**63, 2**64 - 1)}
        assert len(texts) == 5

    def test_a_text_does_not_repeat_one_token(self) -> None:
        assert len(set(sample_many(self.LOGITS, Row(seed=7), 50))) > 30

    def test_a_row_gives_the_same_bits_alone_and_among_others(self) -> None:
        rng = np.random.default_rng(4)
        kinds = [
            Row(temperature=0, num_logprobs=3),
            Row(num_logprobs=5),
            Row(top_k=40, top_p=0.8),
            Row(top_p=0.95, num_logprobs=0),
            Row(min_p=0.05, temperature=0.3),
            Row(top_k=7, temperature=1.7, num_logprobs=1003),
        ]
        rows = [replace(kinds[i % len(kinds)], seed=i * i, position=3 * i) for i in range(31)]
        logits = (
            rng.standard_normal((31, 1003)).astype(np.float32) * 4
        )  # odd, so that rows are aligned differently
        logits[5, 7] = np.nan
        for mode in ("raw_logprobs", "processed_logprobs"):
            together = sample(logits, rows, mode)
            for i, row in enumerate(rows):
                assert result(sample(logits[i : i + 1], [row], mode), 0) == result(together, i)


class TestUnusableRows:
    @pytest.mark.parametrize("bad", [[1, math.nan, 2], [1, INF, 2], [INF, math.nan, 0], [-INF, -INF, -INF]])
    @pytest.mark.parametrize("row", [GREEDY, Row(), Row(top_k=2, top_p=0.5, min_p=0.1)])
    @pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logits"])
    def test_get_the_invalid_id_and_leave_their_neighbours_alone(
        self, bad: list[float], row: Row, mode: str
    ) -> None:
        row = replace(row, num_logprobs=2)
        good = [0.5, 3, 1]
        output = sample([good, bad, good], [row, row, row], mode)
        alone = sample([good], [row], mode)
        assert result(output, 1) == (INVALID_TOKEN_ID, None)
        assert result(output, 0) == result(output, 2) == result(alone, 0)

    def test_masked_tokens_do_not_make_a_row_unusable(self) -> None:
        assert set(sample_many([-INF, 1.0, -INF, 1.5], Row(), 100)) == {1, 3}


class TestPaddedVocabulary:
    @pytest.mark.parametrize(
        "row", [GREEDY, Row(temperature=2.0), Row(top_p=0.99), Row(top_k=6), Row(min_p=0.01)]
    )
    @pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
    def test_padding_is_never_sampled_nor_reported(self, row: Row, mode: str) -> None:
        rows = [replace(row, seed=seed, num_logprobs=8) for seed in range(200)]
        output = sample([[0, 0.5, 0.25, 0.1, 9, 9, 9, 9]] * 200, rows, mode, num_token_ids=4)
        assert output.sampled_token_ids.max() < 4
        reported = [logprobs for logprobs in output.logprobs if logprobs is not None]
        assert len(reported) == 200
        assert all(max(logprobs.token_ids) < 4 for logprobs in reported)
        assert all(0 < sum(map(math.exp, logprobs.logprobs[1:])) <= 1 + 1e-12 for logprobs in reported)

    @pytest.mark.parametrize("filling", [math.nan, INF])
    def test_what_padding_holds_does_not_matter(self, filling: float) -> None:
        output = sample([[0, 1, filling]], [GREEDY], num_token_ids=2)
        assert output.sampled_token_ids.tolist() == [1]

    def test_a_vocabulary_without_padding_is_left_as_it_is(self) -> None:
        assert sample([[0, 1, 2]], [GREEDY], num_token_ids=5).sampled_token_ids.tolist() == [2]


class TestLogprobs:
    PROBS = (0.1, 0.4, 0.2, 0.3)
    LOGITS = tuple(math.log(p) + 5 for p in PROBS)

    def test_come_only_for_rows_that_want_them(self) -> None:
        output = sample([self.LOGITS] * 2, [GREEDY, replace(GREEDY, num_logprobs=0)])
        assert output.logprobs[0] is None
        assert output.logprobs[1] is not None
        assert output.logprobs[1].token_ids == [1]

    def test_hold_the_chosen_token_and_then_the_likeliest(self) -> None:
        (logprobs,) = sample([self.LOGITS], [replace(GREEDY, num_logprobs=3)]).logprobs
        assert logprobs.token_ids == [1, 1, 3, 2]
        assert logprobs.logprobs == pytest.approx(
            [math.log(self.PROBS[token]) for token in logprobs.token_ids]
        )
        assert logprobs.rank == 1

    @pytest.mark.parametrize("count", [4, 5, 10**6])
    def test_may_be_asked_for_the_whole_vocabulary(self, count: int) -> None:
        (logprobs,) = sample([self.LOGITS], [replace(GREEDY, num_logprobs=count)]).logprobs
        assert logprobs.token_ids == [1, 1, 3, 2, 0]

    def test_rank_counts_the_tokens_at_least_as_likely(self) -> None:
        rows = [Row(seed=seed, num_logprobs=0) for seed in range(100)]
        output = sample([[1, 3, 2, 2]] * 100, rows)
        ranks = {logprobs.token_ids[0]: logprobs.rank for logprobs in output.logprobs}
        assert ranks == {0: 4, 1: 1, 2: 3, 3: 3}

    def test_equally_likely_tokens_are_listed_by_id(self) -> None:
        (logprobs,) = sample([[2, 1, 2, 1, 2]], [replace(GREEDY, num_logprobs=4)]).logprobs
        assert logprobs.token_ids == [0, 0, 2, 4, 1]

    def test_do_not_list_masked_tokens(self) -> None:
        (logprobs,) = sample([[-INF, 1, -INF, 1]], [replace(GREEDY, num_logprobs=4)]).logprobs
        assert logprobs.token_ids == [1, 1, 3]
        assert logprobs.logprobs == pytest.approx([math.log(0.5)] * 3)

    def test_raw_modes_look_past_temperature_and_filters(self) -> None:
        row = Row(temperature=0.5, top_k=1, num_logprobs=2)
        (logprobs,) = sample([self.LOGITS], [row], "raw_logprobs").logprobs
        assert logprobs.token_ids == [1, 1, 3]
        assert logprobs.logprobs == pytest.approx([math.log(0.4), math.log(0.4), math.log(0.3)])
        (logprobs,) = sample([self.LOGITS], [row], "raw_logits").logprobs
        assert logprobs.logprobs == pytest.approx([self.LOGITS[token] for token in (1, 1, 3)])

    def test_processed_modes_report_what_was_drawn_from(self) -> None:
        rows = [Row(temperature=0.5, top_k=2, num_logprobs=4, seed=seed) for seed in range(50)]
        output = sample([self.LOGITS] * 50, rows, "processed_logprobs")
        expected = {1: math.log(16 / 25), 3: math.log(9 / 25)}
        assert {logprobs.token_ids[0] for logprobs in output.logprobs} == {1, 3}
        for logprobs in output.logprobs:
            assert logprobs.token_ids[1:] == [1, 3]
            assert logprobs.logprobs == pytest.approx([expected[token] for token in logprobs.token_ids])
        (logits,) = sample([self.LOGITS], [rows[0]], "processed_logits").logprobs
        assert logits.logprobs == pytest.approx([2 * self.LOGITS[token] for token in logits.token_ids])

    @pytest.mark.parametrize(
        ("processed", "raw"), [("processed_logprobs", "raw_logprobs"), ("processed_logits", "raw_logits")]
    )
    def test_processed_modes_equal_raw_ones_for_greedy_rows(self, processed: str, raw: str) -> None:
        row = Row(temperature=0, top_k=1, num_logprobs=4)
        assert sample([self.LOGITS], [row], processed).logprobs == sample([self.LOGITS], [row], raw).logprobs

    def test_stay_finite_for_extreme_logits(self) -> None:
        (logprobs,) = sample([[3e38, -3e38, 0]], [Row(num_logprobs=3)]).logprobs
        assert all(math.isfinite(value) and value <= 0 for value in logprobs.logprobs)


class TestAdjustedLogits:
    """A mask, a bias and penalties at once: what is left of LOGITS is ADJUSTED."""

    LOGITS = (3.0, 2.0, 5.0, 1.0)
    ADJUSTED = (1.0, 4.0, -INF, 1.0)

    def adjusted(
        self, row: Row, mode: str, logits: Iterable[float] = LOGITS
    ) -> tuple[int, TokenLogprobs | None]:
        one = np.ones(1, np.float32)
        token = TokenLists(np.array([0, 1]), np.array([1], np.int32))
        changed = structs.replace(
            metadata([row]),
            allowed=np.array([[0b1011]], np.uint32),
            bias=LogitBias(token, 2 * one),
            penalties=Penalties(one, 0 * one, 2 * one, rows=np.array([0]), **penalty_tables([([], [0])], 4)),
        )
        return result(Sampler(None, mode).forward(np.array([list(logits)], np.float32), changed), 0)

    def test_are_what_greedy_rows_choose_from(self) -> None:
        assert self.adjusted(GREEDY, "raw_logprobs") == (1, None)

    @pytest.mark.parametrize("row", [Row(), Row(top_k=3), Row(top_p=0.9), Row(min_p=0.1)])
    @pytest.mark.parametrize("mode", ["processed_logprobs", "processed_logits"])
    def test_are_what_other_rows_choose_from_and_processed_modes_report(self, row: Row, mode: str) -> None:
        for seed in range(50):
            row = replace(row, seed=seed, num_logprobs=4)
            assert self.adjusted(row, mode) == result(sample([self.ADJUSTED], [row], mode), 0)

    @pytest.mark.parametrize("mode", ["processed_logprobs", "processed_logits"])
    def test_are_what_processed_modes_report_of_greedy_rows(self, mode: str) -> None:
        row = replace(GREEDY, num_logprobs=4)
        assert self.adjusted(row, mode) == result(sample([self.ADJUSTED], [row], mode), 0)

    def test_are_not_what_raw_modes_report(self) -> None:
        _, logprobs = self.adjusted(replace(GREEDY, num_logprobs=4), "raw_logits")
        assert logprobs == TokenLogprobs(token_ids=[1, 2, 0, 1, 3], logprobs=[2, 5, 3, 2, 1], rank=3)

    @pytest.mark.parametrize("bad", [math.nan, INF])
    def test_do_not_make_a_row_usable(self, bad: float) -> None:
        assert self.adjusted(replace(GREEDY, num_logprobs=4), "raw_logits", [3, 2, bad, 1]) == (-1, None)

    def test_may_make_a_row_unusable(self) -> None:
        assert self.adjusted(replace(GREEDY, num_logprobs=4), "raw_logits", [-INF, -INF, 5, -INF]) == (
            -1,
            None,
        )


def test_a_step_without_rows_is_empty() -> None:
    output = Sampler(None).forward(np.empty((0, 8), np.float32), metadata([]))
    assert len(output.sampled_token_ids) == 0
    assert output.logprobs == []


# The sampler once more, one token at a time in plain Python.


def splitmix64(state: int, index: int) -> int:
    bits = (state + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return bits ^ (bits >> 31)


def naive_noise(row: Row, token: int) -> float:
    bits = splitmix64(splitmix64(row.seed, row.position), token)
    return -math.log(-math.log(((bits >> 12) + 0.5) / 2**52))


def naive_choice(logits: list[float], row: Row) -> int:
    """The token to be sampled; discards examples that rounding could decide."""
    order = sorted(
        (token for token, logit in enumerate(logits) if logit > -INF), key=lambda t: (-logits[t], t)
    )
    if row.temperature == 0 or row.min_p == 1:
        return order[0]
    scaled = {token: logits[token] / row.temperature for token in order}
    shares = {token: math.exp(scaled[token] - scaled[order[0]]) for token in order}
    assume(row.min_p == 0 or all(abs(share - row.min_p) > 1e-9 for share in shares.values()))
    order = [token for token in order if shares[token] >= row.min_p]
    order = order[: row.top_k or None]
    if row.top_p < 1:
        total, mass, nucleus = sum(shares[token] for token in order), 0.0, []
        for token in order:
            if mass >= row.top_p:
                break
            mass += shares[token] / total
            assume(abs(mass - row.top_p) > 1e-9)
            nucleus.append(token)
        order = nucleus
    scores = sorted(((scaled[token] + naive_noise(row, token), token) for token in order), reverse=True)
    assume(len(scores) < 2 or scores[0][0] - scores[1][0] > 1e-9)
    return scores[0][1]


def float32(low: float, high: float, **bounds: bool) -> st.SearchStrategy[float]:
    return st.floats(np.float32(low).item(), np.float32(high).item(), width=32, **bounds)


rows_of_any_kind = st.builds(
    Row,
    temperature=st.just(0.0) | float32(0.0078125, 2),
    top_k=st.integers(0, 50),
    top_p=st.just(1.0) | float32(0, 1, exclude_min=True),
    min_p=st.sampled_from([0.0, 1.0]) | float32(0, 1),
    seed=st.integers(0, MASK),
    position=st.integers(0, 2**20),
)
logits_with_ties = st.lists(
    st.sampled_from([-INF, -1.5, 0.0, 0.5, 2.0]) | float32(-12, 12), min_size=1, max_size=40
).filter(lambda logits: max(logits) > -INF)


@given(logits=logits_with_ties, row=rows_of_any_kind)
def test_the_sampler_agrees_with_one_written_naively(logits: list[float], row: Row) -> None:
    assert sample([logits], [row]).sampled_token_ids.tolist() == [naive_choice(logits, row)]
