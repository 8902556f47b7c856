"""Failures and interrupts with steps in flight stay where they befall."""

from __future__ import annotations

import pytest

from octavo.types.outputs import FinishReason
from octavo.types.steps import ModelRunnerOutput, SchedulerOutput
from tests.engine.pipelined import (
    ANSWER,
    DEPTHS,
    IN_FLIGHT,
    a_request,
    add,
    assert_nothing_is_left,
    due,
    plans_of,
)
from tests.fakes import make_core, make_request, run_to_end, tokens_of


@IN_FLIGHT
@pytest.mark.parametrize("half", ["forward", "sample"])
def test_a_step_that_fails_ends_its_requests_and_not_those_of_the_next_one(depth: int, half: str) -> None:
    """With c only in the steps that were planned after the one that fails."""
    core = make_core(100, pipeline_depth=depth, max_num_batched_tokens=12, long_prefill_token_threshold=0)
    requests = add(core, "abc")  # 6 tokens each: a and b fill the first step
    core.executor.runner.fails_in = half
    failed = core.step().outputs
    assert [(output.request_id, output.finish_reason) for output in failed] == [
        ("a", FinishReason.ERROR),
        ("b", FinishReason.ERROR),
    ]
    assert plans_of(core)[1].num_scheduled_tokens.keys() == set("abc")
    core.check()
    news = run_to_end(core)
    assert list(news) == ["c"]
    assert tokens_of(news["c"]) == due(requests[2])
    assert_nothing_is_left(core)


@DEPTHS
def test_what_a_failed_step_wrote_is_never_reused(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    prompt = list(range(1, 20))
    core.add_request(make_request("fails", prompt, ANSWER))
    core.executor.runner.fails_in = "sample"
    core.step()
    core.add_request(make_request("again", prompt, ANSWER))
    news = run_to_end(core)["again"]
    assert news[0].num_cached_tokens == 0
    assert tokens_of(news) == due(make_request("alone", prompt, ANSWER))


def test_nothing_is_shared_that_a_step_in_flight_has_yet_to_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core(100, pipeline_depth=2, max_num_batched_tokens=4)
    runner = core.executor.runner
    execute_model = runner.execute_model

    def execute(output: SchedulerOutput) -> None:
        runner.fails_in = "forward" if len(runner.outputs) == 1 else None
        execute_model(output)

    monkeypatch.setattr(runner, "execute_model", execute)
    prompt = list(range(1, 14))
    core.add_request(make_request("fails", prompt, ANSWER))
    assert core.step().outputs == []
    assert [output.finish_reason for output in core.step().outputs] == [FinishReason.ERROR]
    core.add_request(make_request("again", prompt, ANSWER))
    news = run_to_end(core)["again"]
    assert news[0].num_cached_tokens == 4
    assert tokens_of(news) == due(make_request("alone", prompt, ANSWER))


@IN_FLIGHT
def test_logits_that_are_no_numbers_end_one_request_while_its_next_step_is_in_flight(depth: int) -> None:
    core = make_core(100, pipeline_depth=depth)
    requests = add(core, "ab")
    core.executor.runner.invalid.add(("a", 8))
    news = run_to_end(core)
    assert news["a"][-1].finish_reason is FinishReason.ERROR
    assert tokens_of(news["a"]) == due(requests[0])[:2]
    assert tokens_of(news["b"]) == due(requests[1])
    core.add_request(make_request("again", requests[0].prompt_token_ids, ANSWER))
    assert tokens_of(run_to_end(core)["again"]) == due(requests[0])
    assert_nothing_is_left(core)


@DEPTHS
def test_an_interrupt_ends_the_step_it_hits_and_the_next_step_tells_of_it(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core(100, pipeline_depth=depth, max_num_batched_tokens=12, long_prefill_token_threshold=0)
    requests = add(core, "abc")
    sample_tokens = core.executor.runner.sample_tokens

    def interrupted() -> ModelRunnerOutput:
        try:
            return sample_tokens()
        except RuntimeError as error:
            raise KeyboardInterrupt from error

    core.executor.runner.fails_in = "sample"
    monkeypatch.setattr(core.executor.runner, "sample_tokens", interrupted)
    with pytest.raises(KeyboardInterrupt):
        core.step()
    core.check()
    news = run_to_end(core)
    assert [output.finish_reason for output in news["a"] + news["b"]] == [FinishReason.ERROR] * 2
    assert "KeyboardInterrupt" in str(news["a"][0].stop_reason)
    assert tokens_of(news["c"]) == due(requests[2])
    assert_nothing_is_left(core)


@DEPTHS
def test_an_interrupt_after_the_results_are_in_loses_no_news(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core(100, pipeline_depth=depth)
    (request,) = add(core, "a")

    def interrupted(*told: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(core.scheduler.table.observer, "step_done", interrupted)
        with pytest.raises(KeyboardInterrupt):
            core.step()
    assert tokens_of(run_to_end(core)["a"]) == due(request)
    assert_nothing_is_left(core)


@DEPTHS
def test_a_step_that_cannot_be_planned_ends_all_requests_and_the_engine_goes_on(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core(100, pipeline_depth=depth, max_num_seqs=2)
    add(core, "abc")
    core.step()
    with monkeypatch.context() as patch:
        patch.setattr(core.scheduler, "_make_output", None)
        news = core.step().outputs
    assert {output.request_id: output.finish_reason for output in news} == dict.fromkeys(
        "abc", FinishReason.ERROR
    )
    core.check()
    after = a_request("d")
    core.add_request(after)
    assert tokens_of(run_to_end(core)["d"]) == due(after)
    assert_nothing_is_left(core)
