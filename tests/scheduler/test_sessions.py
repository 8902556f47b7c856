"""Sessions: requests that go on with another turn when one has ended."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from octavo.engine.core import EngineCore
from octavo.errors import RequestError
from octavo.scheduler.request import RequestStatus
from octavo.types.outputs import EngineCoreOutput, FinishReason
from octavo.types.params import SamplingParams
from octavo.types.requests import EngineCoreRequest
from octavo.types.steps import NewRequestData
from tests.fakes import (
    FakeExecutor,
    generate_after,
    make_core,
    make_params,
    make_request,
    run_to_end,
    tokens_of,
)

SIX = make_params(6, ignore_eos=True)
FOREVER = make_params(10_000, ignore_eos=True)
MODEL_LEN = 10_000
ERROR, ABORT = FinishReason.ERROR, FinishReason.ABORT


def a_turn(prompt: Sequence[int], params: SamplingParams = SIX, **fields: object) -> EngineCoreRequest:
    return make_request("s", prompt, params, **{"resumable": True, **fields})


def the_end() -> EngineCoreRequest:
    return a_turn([], resumable=False)


def due(*turns: EngineCoreRequest) -> list[list[int]]:
    """What each turn is to get: the context of the one before, without the last token, and its own prompt."""
    context: list[int] = []
    answers = []
    for turn in turns:
        context += turn.prompt_token_ids
        answer, _ = generate_after(context, turn, MODEL_LEN)
        answers.append(answer)
        context += answer[:-1]
    return answers


def answers_in(news: Sequence[EngineCoreOutput]) -> list[list[int]]:
    """The tokens of each turn that ended in `news`."""
    answers: list[list[int]] = [[]]
    for output in news:
        answers[-1] += output.new_token_ids
        if output.finish_reason is not None:
            answers.append([])
    return answers[:-1]


def run_turn(core: EngineCore, turn: EngineCoreRequest) -> list[EngineCoreOutput]:
    core.add_request(turn)
    return run_to_end(core)["s"]


def ends(news: Sequence[EngineCoreOutput]) -> list[FinishReason]:
    return [output.finish_reason for output in news if output.finish_reason is not None]


def admissions(core: EngineCore) -> list[NewRequestData]:
    runner = core.executor.runner
    assert isinstance(runner, FakeExecutor)
    return [new for plan in runner.outputs for new in plan.scheduled_new_reqs]


def worker_is_empty(core: EngineCore) -> bool:
    core.step()
    core.scheduler.check()
    return not core.executor.runner.rows and core.scheduler.kv_cache.usage == 0


# ----------------------------------------------------------------------------------------------------- turns


def test_a_turn_goes_on_where_the_one_before_ended() -> None:
    core = make_core(100)
    turns = [a_turn([1, 2, 3]), a_turn([4, 5]), a_turn([6])]
    news = [run_turn(core, turn) for turn in turns]
    assert [tokens_of(each) for each in news] == due(*turns)
    assert [ends(each) for each in news] == [[FinishReason.LENGTH]] * 3


def test_what_was_generated_is_prompt_to_the_next_turn_but_its_last_token() -> None:
    core = make_core(100)
    first = tokens_of(run_turn(core, a_turn([1, 2, 3])))
    run_turn(core, a_turn([4, 5]))
    new = admissions(core)[-1]
    assert new.token_ids == [1, 2, 3, *first[:-1], 4, 5]
    assert new.num_prompt_tokens == len(new.token_ids)


def test_turns_that_come_too_early_wait_for_those_before_them() -> None:
    core = make_core(100)
    turns = [a_turn([1, 2, 3]), a_turn([4, 5]), a_turn([6])]
    for turn in turns:
        core.add_request(turn)
    news = run_to_end(core)["s"]
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
    core.add_request(a_turn([2], priority=2, arrival_time=2.0))
    assert list(run_to_end(core)) == ["other", "s"]


def test_a_turn_comes_after_those_who_came_before_it() -> None:
    core = make_core(100, max_num_seqs=1)
    run_turn(core, a_turn([1]))
    core.add_request(make_request("other", [9], SIX))
    core.add_request(a_turn([2]))
    assert list(run_to_end(core)) == ["other", "s"]


# -------------------------------------------------------------------------------------------- ids and the end


def test_a_message_that_is_not_resumable_ends_an_idle_session_and_brings_nothing() -> None:
    core = make_core(100)
    run_turn(core, a_turn([1]))
    core.add_request(the_end())
    assert not core.scheduler.requests
    assert run_to_end(core) == {}
    assert worker_is_empty(core)


def test_the_end_waits_for_the_turns_before_it() -> None:
    core = make_core(100)
    turns = [a_turn([1]), a_turn([2])]
    for message in (*turns, the_end()):
        core.add_request(message)
    assert answers_in(run_to_end(core)["s"]) == due(*turns)
    assert not core.scheduler.requests


def test_after_its_end_marker_a_session_takes_nothing_more_until_it_has_ended() -> None:
    core = make_core(100)
    core.add_request(a_turn([1]))
    core.add_request(the_end())
    with pytest.raises(RequestError, match="'s' is in use"):
        core.add_request(a_turn([2]))
    run_to_end(core)
    assert tokens_of(run_turn(core, a_turn([2]))) == due(a_turn([2]))[0], "another session of that name"


@pytest.mark.parametrize("resumable", [True, False])
def test_a_request_that_is_no_session_cannot_go_on(resumable: bool) -> None:
    core = make_core(100)
    core.add_request(the_end_of_none := make_request("s", [1], SIX))
    with pytest.raises(RequestError, match="'s' is in use"):
        core.add_request(a_turn([2], resumable=resumable))
    assert tokens_of(run_to_end(core)["s"]) == generate_after([1], the_end_of_none, MODEL_LEN)[0]
    assert not core.scheduler.requests


def test_aborting_a_session_ends_it_with_all_its_turns_each_with_its_news() -> None:
    core = make_core(100)
    for prompt in ([1], [2], [3]):
        core.add_request(a_turn(prompt, FOREVER))
    core.add_request(the_end())
    core.step()
    assert ends(core.abort_requests(["s"])) == [ABORT] * 3
    assert not core.scheduler.requests
    assert worker_is_empty(core)


def test_aborting_an_idle_session_is_no_news() -> None:
    core = make_core(100)
    run_turn(core, a_turn([1]))
    assert core.abort_requests(["s"]) == []
    assert not core.scheduler.requests


# ------------------------------------------------------------------------------------------------- stopping


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_stopping_ends_the_turn_and_the_session_goes_on(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    core.add_request(a_turn([1, 2, 3], FOREVER))
    got: list[int] = []
    while len(got) < 4:
        got += tokens_of(core.step().outputs)
    core.stop_requests(["s"])
    core.scheduler.check()
    assert core.step().outputs == [], "nothing more is heard of it, not even what was on its way"
    second = a_turn([4])
    assert tokens_of(run_turn(core, second)) == generate_after([1, 2, 3, *got[:3], 4], second, MODEL_LEN)[0]


def test_stopping_a_turn_lets_the_queued_one_begin() -> None:
    core = make_core(100)
    core.add_request(a_turn([1, 2, 3], FOREVER))
    second = a_turn([4])
    core.add_request(second)
    got = tokens_of(core.step().outputs)
    core.stop_requests(["s"])
    news = run_to_end(core)["s"]
    assert answers_in(news) == [generate_after([1, 2, 3, *got[:-1], 4], second, MODEL_LEN)[0]]


def test_stopping_a_turn_that_has_not_begun_leaves_its_prompt() -> None:
    core = make_core(100)
    core.add_request(a_turn([1, 2, 3]))
    core.stop_requests(["s"])
    core.scheduler.check()
    second = a_turn([4])
    assert tokens_of(run_turn(core, second)) == generate_after([1, 2, 3, 4], second, MODEL_LEN)[0]


def test_stopping_an_idle_session_or_nobody_does_nothing() -> None:
    core = make_core(100)
    turns = [a_turn([1]), a_turn([2])]
    first = tokens_of(run_turn(core, turns[0]))
    core.stop_requests(["s", "nobody"])
    assert [first, tokens_of(run_turn(core, turns[1]))] == due(*turns)


def test_stopping_a_request_that_is_no_session_ends_it() -> None:
    core = make_core(100)
    core.add_request(make_request("a", [1], FOREVER))
    core.step()
    core.stop_requests(["a"])
    assert not core.scheduler.requests
    assert core.step().outputs == []
    assert worker_is_empty(core)


# --------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("depth", [1, 2])
def test_logits_that_are_no_numbers_end_the_session_and_refuse_its_turns(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    core.executor.runner.invalid.add(("s", 3))
    for prompt in ([1, 2, 3], [4], [5]):
        core.add_request(a_turn(prompt))
    news = run_to_end(core)["s"]
    assert ends(news) == [ERROR] * 3
    assert "not finite" in str(news[0].stop_reason)
    assert "the turn before ended with an error" in str(news[1].stop_reason)
    assert not core.scheduler.requests
    assert worker_is_empty(core)


@pytest.mark.parametrize("half", ["forward", "sample"])
def test_a_step_that_fails_ends_the_sessions_in_it_and_their_turns(half: str) -> None:
    core = make_core(100)
    for prompt in ([1, 2, 3], [4]):
        core.add_request(a_turn(prompt))
    core.executor.runner.fails_in = half
    assert ends(run_to_end(core)["s"]) == [ERROR] * 2
    assert worker_is_empty(core)


def test_a_step_that_cannot_be_planned_does_not_end_an_idle_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go unnoticed, and a next turn would begin without what was said before."""
    core = make_core(100)
    turns = [a_turn([1]), a_turn([2])]
    first = tokens_of(run_turn(core, turns[0]))
    core.add_request(make_request("a", [9], SIX))
    with monkeypatch.context() as patch:
        patch.setattr(core.scheduler, "_make_output", None)
        (failed,) = core.step().outputs
    assert (failed.request_id, failed.finish_reason) == ("a", ERROR)
    core.scheduler.check()
    assert [first, tokens_of(run_turn(core, turns[1]))] == due(*turns)


# --------------------------------------------------------------------------------------------------- length


def test_a_turn_for_which_the_context_has_no_room_is_refused_and_the_session_lives() -> None:
    core = make_core(100, max_model_len=12)
    turns = [a_turn([1, 2, 3]), a_turn([4, 5, 6])]
    first = tokens_of(run_turn(core, turns[0]))  # 8 tokens are left of it
    with pytest.raises(RequestError, match=r"has 4 tokens.*at most 3 after the 8 of its session") as raised:
        core.add_request(a_turn([4, 5, 6, 7]))
    assert raised.value.param == "prompt"
    last = run_turn(core, turns[1])
    assert first == due(turns[0])[0]
    assert ends(last) == [FinishReason.LENGTH]
    assert len(tokens_of(last)) == 1, "the context is full"
    with pytest.raises(RequestError, match="at most 0 after the 11"):
        core.add_request(a_turn([4]))


@pytest.mark.parametrize("prompt", [[4] * 4, []])
def test_a_queued_turn_that_turns_out_not_to_fit_ends_the_session(prompt: list[int]) -> None:
    core = make_core(100, max_model_len=12)
    for each in ([1, 2, 3], prompt, [9]):
        core.add_request(a_turn(each))
    news = run_to_end(core)["s"]
    assert ends(news) == [FinishReason.LENGTH, ERROR, ERROR]
    assert f"has {len(prompt)} tokens" in str(news[-1].stop_reason)
    assert not core.scheduler.requests
    assert worker_is_empty(core)


def test_what_a_stop_brings_upon_the_queued_turn_is_told_by_another_step() -> None:
    core = make_core(100, max_model_len=12)
    core.add_request(a_turn([1] * 9, FOREVER))
    core.add_request(a_turn([4] * 4))
    core.step()
    core.stop_requests(["s"])
    assert core.has_unfinished_requests()
    assert ends(run_to_end(core)["s"]) == [ERROR]


# ---------------------------------------------------------------------------------- memory, chunks, pipelines


def test_an_idle_session_holds_no_row_and_no_block() -> None:
    core = make_core(100, max_num_seqs=1)
    run_turn(core, a_turn([1, 2, 3]))
    session = core.scheduler.requests["s"]
    assert session.status is RequestStatus.WAITING_FOR_STREAMING_REQ
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
def test_a_session_computes_again_what_the_cache_has_lost(settings: dict[str, bool]) -> None:
    core = make_core(8, **settings)
    turns = [a_turn([1, 2, 3]), a_turn([4, 5])]
    first = tokens_of(run_turn(core, turns[0]))
    core.add_request(make_request("other", [9] * 26, make_params(2, ignore_eos=True)))
    run_to_end(core)
    news = run_turn(core, turns[1])
    assert [first, tokens_of(news)] == due(*turns)
    assert news[0].num_cached_tokens == 0


def test_block_hashes_end_where_the_context_does() -> None:
    """A block with the dropped token in it must not be found by what comes in that token's place."""
    core = make_core(100)
    turns = [a_turn([1, 2], make_params(6, ignore_eos=True)), a_turn([4, 5, 6, 7, 8])]
    first = tokens_of(run_turn(core, turns[0]))
    session = core.scheduler.requests["s"]
    assert (session.num_tokens, len(session.block_hashes)) == (7, 1)
    assert [first, tokens_of(run_turn(core, turns[1]))] == due(*turns)
    assert len(session.block_hashes) == session.num_tokens // 4


def test_a_block_that_the_dropped_token_filled_is_hashed_anew() -> None:
    """A request that waits has the hashes of all its tokens, the last one too."""
    core = make_core(100)
    core.add_request(a_turn([1, 2, 3, 4, 5], FOREVER))
    while core.scheduler.requests["s"].num_tokens < 8:
        core.step()
    assert core.reset_prefix_cache(reset_running_requests=True)
    session = core.scheduler.requests["s"]
    core.scheduler.kv_cache.get_computed_blocks(session)
    assert len(session.block_hashes) == 2
    core.stop_requests(["s"])
    assert len(session.block_hashes) == 1
    assert len(tokens_of(run_turn(core, a_turn([6, 7, 8, 9])))) == 6
    context = session.token_ids
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
    for turn in turns:
        core.add_request(turn)
    news = run_to_end(core)
    assert answers_in(news["s"]) == due(*turns)
    assert any("s" in plan.preempted_req_ids for plan in core.executor.runner.outputs)


@pytest.mark.parametrize("depth", [2, 3])
def test_a_token_in_flight_when_its_turn_ends_is_void(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    stop = a_turn([1, 2, 3], make_params(50, ignore_eos=True, stop_token_ids=tuple(range(0, 50, 2))))
    turns = [stop, a_turn([4]), a_turn([5])]
    for turn in turns:
        core.add_request(turn)
    news = run_to_end(core)["s"]
    assert answers_in(news) == due(*turns)
    assert ends(news)[0] is FinishReason.STOP
