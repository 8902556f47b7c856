"""Sessions: requests that go on with another turn when one has ended."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from octavo.kv_cache import hashing
from octavo.kv_cache.hashing import BlockHash, hash_block
from octavo.types.outputs import FinishReason
from octavo.types.requests import MediaSpan
from tests.fakes import make_core, make_params, make_request, run_to_end, tokens_of
from tests.scheduler.turns import (
    FOREVER,
    SIX,
    a_turn,
    add,
    admissions,
    answers_in,
    context_of,
    due,
    ends,
    has_session,
    run_turn,
    run_turns,
    worker_is_empty,
)

# ----------------------------------------------------------------------------------------------------- turns


def test_a_turn_goes_on_where_the_one_before_ended() -> None:
    core = make_core(100)
    turns = [a_turn([1, 2, 3]), a_turn([4, 5]), a_turn([6])]
    news = [run_turn(core, turn) for turn in turns]
    assert [tokens_of(each) for each in news] == due(*turns)
    assert [ends(each) for each in news] == [[FinishReason.LENGTH]] * 3


def test_the_next_turn_has_the_answer_without_its_last_token() -> None:
    core = make_core(100)
    first = tokens_of(run_turn(core, a_turn([1, 2, 3])))
    run_turn(core, a_turn([4, 5]))
    new = admissions(core)[-1]
    assert new.token_ids == [1, 2, 3, *first[:-1], 4, 5]
    assert new.num_prompt_tokens == len(new.token_ids)


def test_turns_wait_for_earlier_turns() -> None:
    core = make_core(100)
    turns = [a_turn([1, 2, 3]), a_turn([4, 5]), a_turn([6])]
    add(core, *turns)
    news = run_turns(core)
    assert answers_in(news) == due(*turns)
    assert worker_is_empty(core)


def test_each_turn_has_parameters_of_its_own() -> None:
    core = make_core(100)
    run_turn(core, a_turn([1], make_params(2, ignore_eos=True)))
    assert len(tokens_of(run_turn(core, a_turn([2], make_params(9, ignore_eos=True))))) == 9
    stop = make_params(50, ignore_eos=True, stop_token_ids=tuple(range(25)))
    last = run_turn(core, a_turn([3], stop))[-1]
    assert last.finish_reason is FinishReason.STOP
    assert last.stop_reason == last.new_token_ids[-1]
    news = run_turn(core, a_turn([4], SIX))[-1]
    assert (news.finish_reason, news.stop_reason) == (FinishReason.LENGTH, None)


def test_a_turn_is_as_urgent_as_it_says_not_as_the_session_was() -> None:
    core = make_core(100, max_num_seqs=1, scheduling_policy="priority")
    run_turn(core, a_turn([1], priority=0, arrival_time=0.0))
    core.add_request(make_request("other", [9], SIX, priority=1, arrival_time=1.0))
    add(core, turn := a_turn([2], priority=2, arrival_time=2.0))
    assert list(run_to_end(core)) == ["other", turn.request_id]


def test_a_turn_runs_after_requests_that_arrived_earlier() -> None:
    core = make_core(100, max_num_seqs=1)
    run_turn(core, a_turn([1]))
    core.add_request(make_request("other", [9], SIX))
    add(core, turn := a_turn([2]))
    assert list(run_to_end(core)) == ["other", turn.request_id]


# ---------------------------------------------------------------------------------- memory, chunks, pipelines


def test_an_idle_session_holds_no_row_and_no_block() -> None:
    core = make_core(100, max_num_seqs=1)
    run_turn(core, a_turn([1, 2, 3]))
    assert has_session(core)
    assert not core.scheduler.requests
    assert worker_is_empty(core)
    assert not core.has_unfinished_requests()
    core.add_request(make_request("other", [9], SIX))
    assert len(tokens_of(run_to_end(core)["other"])) == 6


def test_a_session_finds_its_context_in_the_prefix_cache() -> None:
    core = make_core(100)
    turns = [a_turn([1, 2, 3]), a_turn([4, 5])]
    first = tokens_of(run_turn(core, turns[0]))
    news = run_turn(core, turns[1])
    assert [first, tokens_of(news)] == due(*turns)
    assert news[0].num_cached_tokens == 8  # all that was computed: 3 and 5, in blocks of 4
    assert admissions(core)[-1].num_computed_tokens == 8


@pytest.mark.parametrize("settings", [{"enable_caching": False}, {}], ids=["no cache", "evicted"])
def test_a_session_computes_evicted_tokens_again(settings: dict[str, bool]) -> None:
    core = make_core(8, **settings)
    turns = [a_turn([1, 2, 3]), a_turn([4, 5])]
    first = tokens_of(run_turn(core, turns[0]))
    core.add_request(make_request("other", [9] * 26, make_params(2, ignore_eos=True)))
    run_to_end(core)
    news = run_turn(core, turns[1])
    assert [first, tokens_of(news)] == due(*turns)
    assert news[0].num_cached_tokens == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_salt": "salt"},
        {"adapter": "adapter"},
        {"media": (MediaSpan(offset=1, num_tokens=1, identifier="image"),)},
    ],
    ids=["salt", "adapter", "media"],
)
def test_num_tokens_to_compute_of_a_turn_depends_on_the_first_turn(
    fields: dict[str, object],
) -> None:
    core = make_core(100)
    run_turn(core, a_turn([1, 2, 3], **fields))
    assert core.scheduler.table.num_tokens_to_compute(a_turn([4, 5])) == 2


def test_num_tokens_to_compute_hashes_no_earlier_block_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = make_core(100)
    turns = [a_turn([1, 2, 3], make_params(38, ignore_eos=True)), a_turn([4, 5, 6, 7, 8, 9])]
    first = tokens_of(run_turn(core, turns[0]))
    session = core.scheduler.table.sessions.get("s")
    before = (list(session.context.token_ids), list(session.context.block_hashes))
    hashed: list[Sequence[int]] = []

    def hash_and_count(parent: bytes, token_ids: Sequence[int], extra_keys: bytes) -> BlockHash:
        hashed.append(token_ids)
        return hash_block(parent, token_ids, extra_keys)

    with monkeypatch.context() as patch:
        patch.setattr(hashing, "hash_block", hash_and_count)
        assert core.scheduler.table.num_tokens_to_compute(turns[1]) == 6
    assert hashed == [[4, 5, 6, 7]]
    assert (session.context.token_ids, session.context.block_hashes) == before
    assert [first, tokens_of(run_turn(core, turns[1]))] == due(*turns)


def test_block_hashes_end_where_the_context_does() -> None:
    """A block with the dropped token in it must not be found by what comes in that token's place."""
    core = make_core(100)
    turns = [a_turn([1, 2], make_params(6, ignore_eos=True)), a_turn([4, 5, 6, 7, 8])]
    first = tokens_of(run_turn(core, turns[0]))
    session = core.scheduler.table.sessions.get("s")
    assert (len(session.context.token_ids), len(session.context.block_hashes)) == (7, 1)
    assert [first, tokens_of(run_turn(core, turns[1]))] == due(*turns)
    assert len(session.context.block_hashes) == len(session.context.token_ids) // 4


def test_a_block_that_the_dropped_token_filled_is_hashed_anew() -> None:
    """A request that waits has the hashes of all its tokens, the last one too."""
    core = make_core(100)
    add(core, turn := a_turn([1, 2, 3, 4, 5], FOREVER))
    request = core.scheduler.requests[turn.request_id]
    while request.num_tokens < 8:
        core.step()
    assert core.reset_prefix_cache(reset_running_requests=True)
    core.scheduler.kv_cache.get_computed_blocks(request)
    assert len(request.block_hashes) == 2
    core.stop_requests([turn.request_id])
    assert len(core.scheduler.table.sessions.get("s").context.block_hashes) == 1
    assert len(tokens_of(run_turn(core, a_turn([6, 7, 8, 9])))) == 6
    context = context_of(core)
    core.add_request(make_request("other", context[:10], SIX))
    assert run_to_end(core)["other"][0].num_cached_tokens == 9


def test_another_request_with_the_context_as_its_prompt_shares_the_sessions_blocks() -> None:
    core = make_core(100)
    first = tokens_of(run_turn(core, a_turn([1, 2, 3])))
    core.add_request(make_request("other", [1, 2, 3, *first[:-1], 4], SIX))
    assert run_to_end(core)["other"][0].num_cached_tokens == 8


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("caching", [True, False])
def test_chunked_and_preempted_sessions_get_the_same_tokens(depth: int, caching: bool) -> None:
    core = make_core(10, pipeline_depth=depth, max_num_batched_tokens=4, enable_caching=caching)
    turns = [a_turn(range(1, 7), make_params(14, ignore_eos=True)), a_turn(range(20, 28))]
    core.add_request(make_request("rival", [9] * 7, make_params(28, ignore_eos=True)))
    add(core, *turns)
    assert answers_in(run_turns(core)) == due(*turns)
    turn_ids = {turn.request_id for turn in turns}
    assert any(turn_ids & plan.preempted_req_ids for plan in core.executor.runner.outputs)


@pytest.mark.parametrize("depth", [2, 3])
def test_a_token_in_flight_when_its_turn_ends_is_void(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    stop = a_turn([1, 2, 3], make_params(50, ignore_eos=True, stop_token_ids=tuple(range(0, 50, 2))))
    turns = [stop, a_turn([4]), a_turn([5])]
    add(core, *turns)
    news = run_turns(core)
    assert answers_in(news) == due(*turns)
    assert ends(news)[0] is FinishReason.STOP
