"""What fails in or around a step ends the requests it concerns, and nobody else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from octavo import LLM, SamplingParams
from octavo.errors import RequestError
from octavo.scheduler import scheduler as scheduler_module
from octavo.types.outputs import Rejection
from octavo.types.requests import EngineCoreRequest
from tests.frontend.tiny_llm import GREEDY, assert_idle, core_of


def test_a_step_that_fails_ends_only_its_own_requests(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = llm.engine.client.core.executor.runner.backend

    def fail(batch: Any) -> Any:
        raise MemoryError("no room for the scores")

    monkeypatch.setattr(backend, "forward", fail)
    answer = llm.generate("a", GREEDY, use_tqdm=False)[0].outputs[0]
    assert (answer.finish_reason, answer.stop_reason) == ("error", "MemoryError: no room for the scores")
    monkeypatch.undo()
    assert_idle(llm)
    assert llm.generate("a", GREEDY, use_tqdm=False)[0].outputs[0].finish_reason == "length"


def test_logits_that_are_not_numbers_end_only_their_own_request(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = llm.generate("good", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    backend = llm.engine.client.core.executor.runner.backend
    forward = backend.forward

    def poisoned(batch: Any) -> Any:
        hidden = forward(batch)
        last = batch.query_start_loc[1:] - 1
        token_ids = backend._tokens.gather(batch)
        hidden[last[token_ids[last] == ord("!")]] = float("nan")
        return hidden

    monkeypatch.setattr(backend, "forward", poisoned)
    good, bad = llm.generate(["good", "bad!"], GREEDY, use_tqdm=False)
    assert good.outputs[0].token_ids == expected
    assert bad.outputs[0].finish_reason == "error"
    assert "not finite" in bad.outputs[0].stop_reason
    assert_idle(llm)


def test_output_that_cannot_be_processed_leaves_no_state_and_harms_no_other_request(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    from octavo.frontend.detokenizer import IncrementalDetokenizer

    params = [GREEDY, msgspec.structs.replace(GREEDY, max_tokens=50)]
    expected = llm.generate("a", GREEDY, use_tqdm=False)[0].outputs[0].text
    update = IncrementalDetokenizer.update

    def fail(self: Any, *args: Any) -> Any:
        if self._params.max_tokens == 50:
            raise ValueError("a bad day")
        return update(self, *args)

    monkeypatch.setattr(IncrementalDetokenizer, "update", fail)
    for _ in range(20):
        good, bad = (output.outputs[0] for output in llm.generate(["a", "b"], params, use_tqdm=False))
        assert (bad.finish_reason, bad.stop_reason) == ("error", "ValueError: a bad day")
        assert good.text == expected
        assert_idle(llm)


def test_an_interrupt_inside_a_step_ends_its_requests_and_the_engine_goes_on(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = llm.engine
    backend = engine.client.core.executor.runner.backend

    def interrupted(batch: Any) -> Any:
        raise KeyboardInterrupt

    lost = engine.add_request("lost", "hello", GREEDY)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    after = engine.add_request("next", "hello", GREEDY)
    while engine.has_unfinished_requests():
        engine.step()
    failed = lost.get_nowait()
    assert failed.outputs[0].finish_reason == "error"
    assert failed.outputs[0].stop_reason == "a step of the engine was broken off: KeyboardInterrupt: "
    assert failed.metrics.first_token_time is None
    assert after.get_nowait().outputs[0].finish_reason == "length"
    assert_idle(llm)


def rejecting(llm: LLM, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    """Have the core reject requests whose ids end so."""
    scheduler = core_of(llm)
    add = scheduler.add_request

    def add_or_reject(request: EngineCoreRequest) -> bool:
        if not request.request_id.endswith(ending):
            return add(request)
        scheduler.reject(request, Rejection("no more", "prompt"))
        return False

    monkeypatch.setattr(scheduler, "add_request", add_or_reject)


def test_a_request_of_which_one_answer_is_rejected_leaves_none_of_its_answers(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = llm.engine.add_request("id", "hello", GREEDY)
    with monkeypatch.context() as patch:
        rejecting(llm, patch, ".1")
        rejected = llm.engine.add_request("id", "hello", SamplingParams(n=3))
    llm.engine.step()
    with pytest.raises(RequestError, match="no more") as raised:
        rejected.get_nowait()
    assert raised.value.param == "prompt"
    # The other request with the same id is left alone.
    assert len(core_of(llm).requests) == 1
    assert not other.is_finished
    llm.engine.abort_requests("id")
    assert_idle(llm)


def test_generate_raises_the_rejection_of_a_request_by_its_number_and_aborts_the_others(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    with llm.session() as session:
        session.append("of somebody else", GREEDY)
        with monkeypatch.context() as patch:
            rejecting(
                llm, patch, f"generate-{llm._num_requests + 1}.{llm.engine.output_processor._num_added + 2}.0"
            )
            with pytest.raises(RequestError, match="request 2 of 3: no more") as raised:
                llm.generate(["a", "b", "c"], GREEDY, use_tqdm=False)
        assert raised.value.param == "prompt"
        assert len(core_of(llm).requests) == 1
        assert list(session.stream())[-1].outputs[0].finish_reason == "length"
    assert_idle(llm)


def test_planning_that_fails_ends_every_request_and_the_engine_goes_on(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> Any:
        raise ValueError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(core_of(llm).kv_cache, "get_computed_blocks", fail)
        outputs = llm.generate(["a", "b"], GREEDY, use_tqdm=False)
    assert [output.outputs[0].stop_reason for output in outputs] == ["ValueError: a bug"] * 2
    assert_idle(llm)
    assert llm.generate("a", GREEDY, use_tqdm=False)[0].outputs[0].finish_reason == "length"


def test_results_that_cannot_be_taken_in_lose_no_request(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    take_in = scheduler_module.take_in

    def fail_for_the_second(share: Any, result: Any) -> Any:
        if share.request.token_ids[0] == ord("b"):
            raise ValueError("a bug")
        return take_in(share, result)

    one_token = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    with monkeypatch.context() as patch:
        patch.setattr(scheduler_module, "take_in", fail_for_the_second)
        outputs = llm.generate(["a", "b"], one_token, use_tqdm=False)  # "a" has ended when "b" fails
    assert [output.outputs[0].finish_reason for output in outputs] == ["length", "error"]
    assert_idle(llm)
