"""The step from outside: failures stay with whom they befall, and nothing is left behind."""

from __future__ import annotations

import random

import pytest

from octavo.engine.core import EngineCore
from octavo.types.outputs import FinishReason
from octavo.types.requests import EngineCoreRequest
from tests.fakes import (
    FakeExecutor,
    generate_alone,
    make_core,
    make_params,
    make_request,
    run_to_end,
    tokens_of,
)

ANSWER = make_params(6, ignore_eos=True)


def requests_named(names: str) -> list[EngineCoreRequest]:
    return [
        make_request(name, [ord(name)] * 6, ANSWER, arrival_time=float(n)) for n, name in enumerate(names)
    ]


def add(core: EngineCore, requests: list[EngineCoreRequest]) -> None:
    for request in requests:
        core.add_request(request)


def executor_of(core: EngineCore) -> FakeExecutor:
    runner = core.executor.runner
    assert isinstance(runner, FakeExecutor)
    return runner


def assert_nothing_is_left(core: EngineCore) -> None:
    core.check()
    core.step()
    assert not executor_of(core).rows
    assert core.scheduler.kv_cache.usage == 0
    assert not core.has_unfinished_requests()


def test_all_requests_get_the_tokens_they_get_alone() -> None:
    core = make_core(100)
    requests = requests_named("abcd")
    add(core, requests)
    news = run_to_end(core)
    for request in requests:
        due, reason = generate_alone(request, 10_000)
        assert tokens_of(news[request.request_id]) == due
        assert news[request.request_id][-1].finish_reason is reason
    assert_nothing_is_left(core)


def test_news_come_one_token_a_step_and_none_while_a_prompt_is_unfinished() -> None:
    core = make_core(100, max_num_batched_tokens=4)
    core.add_request(make_request("a", list(range(1, 11)), ANSWER))
    assert [len(core.step().outputs) for _ in range(4)] == [0, 0, 1, 1]


def test_a_step_without_requests_is_harmless() -> None:
    core = make_core(10)
    for _ in range(3):
        assert core.step().outputs == []


# --------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("half", ["forward", "sample"])
def test_a_step_that_fails_ends_its_own_requests_and_no_others(half: str) -> None:
    core = make_core(100, max_num_seqs=2)
    requests = requests_named("abcd")
    add(core, requests)
    executor_of(core).fails_in = half
    failed = core.step().outputs
    assert [(output.request_id, output.finish_reason) for output in failed] == [
        ("a", FinishReason.ERROR),
        ("b", FinishReason.ERROR),
    ]
    assert {output.stop_reason for output in failed} == {"RuntimeError: this step was told to fail"}
    core.check()
    news = run_to_end(core)
    assert set(news) == {"c", "d"}
    for request in requests[2:]:
        assert tokens_of(news[request.request_id]) == generate_alone(request, 10_000)[0]
    assert_nothing_is_left(core)


@pytest.mark.parametrize("half", ["forward", "sample"])
def test_what_a_failed_step_wrote_is_never_reused(half: str) -> None:
    core = make_core(100)
    prompt = list(range(1, 20))
    core.add_request(make_request("fails", prompt, ANSWER))
    executor_of(core).fails_in = half
    core.step()
    core.add_request(make_request("again", prompt, ANSWER))
    news = run_to_end(core)["again"]
    assert news[-1].num_cached_tokens == 0
    assert tokens_of(news) == generate_alone(make_request("alone", prompt, ANSWER), 10_000)[0]


def test_a_request_that_waited_through_a_failed_step_is_not_touched_by_it() -> None:
    core = make_core(100, max_num_batched_tokens=8, long_prefill_token_threshold=0)
    add(core, [make_request("long", list(range(1, 30)), ANSWER), make_request("waits", [9, 9], ANSWER)])
    executor_of(core).fails_in = "forward"
    assert [output.request_id for output in core.step().outputs] == ["long"]
    assert set(run_to_end(core)) == {"waits"}


def test_logits_that_are_no_numbers_end_their_request_alone() -> None:
    core = make_core(100)
    requests = requests_named("abc")
    add(core, requests)
    executor_of(core).invalid.add(("b", 8))
    news = run_to_end(core)
    last = news["b"][-1]
    assert (last.finish_reason, last.new_token_ids) == (FinishReason.ERROR, [])
    assert "not finite" in str(last.stop_reason)
    assert tokens_of(news["b"]) == generate_alone(requests[1], 10_000)[0][:2]
    for request in (requests[0], requests[2]):
        assert tokens_of(news[request.request_id]) == generate_alone(request, 10_000)[0]
    assert_nothing_is_left(core)


def test_a_prompt_whose_logits_were_no_numbers_once_is_computed_anew() -> None:
    core = make_core(100)
    prompt = list(range(1, 20))
    executor_of(core).invalid.add(("bad", 19))
    core.add_request(make_request("bad", prompt, ANSWER))
    assert run_to_end(core)["bad"][-1].finish_reason is FinishReason.ERROR
    core.add_request(make_request("good", prompt, ANSWER))
    news = run_to_end(core)["good"]
    assert news[-1].num_cached_tokens == 0
    assert news[-1].finish_reason is FinishReason.LENGTH


def test_hundreds_of_failures_leave_no_ghosts() -> None:
    core = make_core(12)
    for number in range(200):
        if number % 2:
            executor_of(core).fails_in = random.Random(number).choice(["forward", "sample"])
        else:
            executor_of(core).invalid.add((str(number), 9))
        core.add_request(make_request(str(number), [number % 5] * 9, ANSWER))
        assert run_to_end(core)[str(number)][-1].finish_reason is FinishReason.ERROR
    assert_nothing_is_left(core)
    core.add_request(make_request("after", [1, 2, 3], ANSWER))
    assert len(tokens_of(run_to_end(core)["after"])) == 6


def test_a_refused_request_leaves_no_trace() -> None:
    core = make_core(10)
    core.add_request(make_request("a", [1] * 1000))
    (output,) = core.step().outputs
    assert output.finish_reason is FinishReason.ERROR
    assert output.rejection is not None
    assert_nothing_is_left(core)
    core.add_request(make_request("a", [1], ANSWER))
    assert len(tokens_of(run_to_end(core)["a"])) == 6


# ----------------------------------------------------------------------------------------------------- aborts


def test_aborting_requests_without_blocks_changes_no_other_request() -> None:
    core = make_core(100, max_num_seqs=1)
    requests = requests_named("abcdef")
    add(core, requests)
    core.step()
    assert [output.request_id for output in core.abort_requests(["d", "b"])] == ["d", "b"]
    core.check()
    news = run_to_end(core)
    assert list(news) == ["a", "c", "e", "f"]
    assert len(tokens_of(news["a"])) == 5, "its first token came before"
    assert all(len(tokens_of(news[name])) == 6 for name in "cef")
    assert_nothing_is_left(core)


def test_aborting_twice_after_the_end_or_by_an_unknown_id_does_nothing() -> None:
    core = make_core(100)
    core.add_request(make_request("a", [1], make_params(1)))
    core.step()
    assert core.abort_requests(["a", "nobody"]) == []
    core.add_request(make_request("b", [1], ANSWER))
    assert len(core.abort_requests(["b", "b"])) == 1
    assert core.abort_requests(["b"]) == []
    assert_nothing_is_left(core)


def test_all_requests_can_be_aborted() -> None:
    core = make_core(100, max_num_seqs=2)
    add(core, requests_named("abcd"))
    core.step()
    assert {output.request_id for output in core.abort_requests(None)} == set("abcd")
    assert_nothing_is_left(core)


def test_an_id_may_be_used_again_right_after_its_abort() -> None:
    core = make_core(100)
    core.add_request(make_request("a", [1] * 9, ANSWER))
    core.step()
    core.abort_requests(["a"])
    again = make_request("a", [2] * 5, ANSWER)
    core.add_request(again)
    news = run_to_end(core)["a"]
    assert tokens_of(news) == generate_alone(again, 10_000)[0]
    assert_nothing_is_left(core)


def test_aborts_that_race_with_ends() -> None:
    rng = random.Random(1)
    core = make_core(40, max_num_seqs=8)
    ended: dict[str, FinishReason] = {}
    for number in range(500):
        core.add_request(make_request(f"r{number}", [number % 7 + 1] * 5, make_params(rng.randint(1, 3))))
        for output in [*core.abort_requests([f"r{rng.randint(0, number)}"]), *core.step().outputs]:
            assert output.request_id not in ended
            if output.finish_reason is not None:
                ended[output.request_id] = output.finish_reason
        core.check()
    ended |= {name: outputs[-1].finish_reason for name, outputs in run_to_end(core).items()}
    assert len(ended) == 500
    assert (
        {FinishReason.ABORT, FinishReason.LENGTH}
        <= set(ended.values())
        <= {*FinishReason} - {FinishReason.ERROR}
    )
    assert_nothing_is_left(core)


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
@pytest.mark.parametrize("depth", [1, 2])
def test_of_a_thousand_waiting_requests_all_but_the_aborted_are_answered(policy: str, depth: int) -> None:
    rng = random.Random(3)
    core = make_core(200, max_num_seqs=32, scheduling_policy=policy, pipeline_depth=depth)
    requests = {
        f"r{number}": make_request(f"r{number}", [number % 40 + 1] * 5, ANSWER, arrival_time=float(number))
        for number in range(1000)
    }
    add(core, list(requests.values()))
    to_cancel = rng.sample(list(requests), 900)
    tokens: dict[str, list[int]] = {name: [] for name in requests}
    ended: dict[str, FinishReason] = {}
    while core.has_unfinished_requests():
        cancelled = [to_cancel.pop() for _ in range(min(rng.choice([0, 1, 40, 80]), len(to_cancel)))]
        for output in [*core.abort_requests(cancelled), *core.step().outputs]:
            assert output.request_id not in ended
            tokens[output.request_id] += output.new_token_ids
            if output.finish_reason is not None:
                ended[output.request_id] = output.finish_reason
        assert all(name in ended for name in cancelled)
        core.check()
    assert ended.keys() == requests.keys()
    assert 100 <= list(ended.values()).count(FinishReason.LENGTH) < 500
    for name, reason in ended.items():
        due = generate_alone(requests[name], 10_000)[0]
        assert tokens[name] == (due if reason is FinishReason.LENGTH else due[: len(tokens[name])])
    assert_nothing_is_left(core)
