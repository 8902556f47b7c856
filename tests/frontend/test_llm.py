"""`LLM` from end to end, on the tiny model."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo import LLM, SamplingParams
from octavo.errors import ConfigError, ModelNotFoundError, RequestError, UnsupportedError
from octavo.hub import ALIASES
from tests.frontend.tiny_llm import GREEDY, assert_idle, core_of, make_llm
from tests.tiny_model import CONTEXT


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [f"{'long ' * (index % 5)}prompt {index % 7}" for index in range(200)]
    # Those that come later often end earlier.
    params = [msgspec.structs.replace(GREEDY, max_tokens=6 - index % 5) for index in range(200)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    texts: dict[str, set[str]] = {}
    for output in outputs:
        texts.setdefault(output.prompt, set()).add(output.outputs[0].text)
    assert all(len(found) == 1 for found in texts.values()), "equal prompts gave different greedy texts"
    assert_idle(llm)


def test_params_may_be_one_for_each_prompt(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=count, ignore_eos=True) for count in (1, 5, 3)]
    outputs = llm.generate(["a", "b", "c"], params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 5, 3]
    with pytest.raises(RequestError, match="2 items for 3 prompts"):
        llm.generate(["a", "b", "c"], params[:2], use_tqdm=False)


def test_empty_input(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []
    with pytest.raises(RequestError, match="the prompt is empty"):
        llm.generate("", GREEDY)
    with pytest.raises(RequestError, match="messages is empty"):
        llm.chat([])


def test_one_bad_prompt_is_an_error_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(
        RequestError, match=f"request 2 of 3: .* has {CONTEXT + 10} tokens, and the context is"
    ):
        llm.generate(["fine", "x" * (CONTEXT + 10), "fine"], GREEDY, use_tqdm=False)
    assert_idle(llm)


def test_priority_needs_its_policy(llm: LLM, tiny_model: Path) -> None:
    with pytest.raises(RequestError, match="under the fcfs policy"):
        llm.generate("x", GREEDY, priority=[5], use_tqdm=False)
    by_priority = make_llm(tiny_model, scheduling_policy="priority")
    assert by_priority.generate(["x", "y"], GREEDY, priority=[5, -5], use_tqdm=False)[0].finished
    with pytest.raises(RequestError, match="priority is 'high'"):
        by_priority.generate("x", GREEDY, priority=["high"], use_tqdm=False)


def test_an_engine_that_is_closed_gives_its_threads_back(tiny_model: Path) -> None:
    with make_llm(tiny_model, pipeline_depth=2) as llm:
        llm.generate("a", GREEDY, use_tqdm=False)
        workers = [thread for thread in threading.enumerate() if thread.name.startswith("octavo-worker")]
        assert workers
    assert not any(thread.is_alive() for thread in workers)
    llm.close()


def test_the_progress_bar_counts_prompts_and_tokens(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], GREEDY)
    bar = capsys.readouterr().err
    assert "Processed prompts: 100%" in bar
    assert "est. speed input:" in bar
    assert "output:" in bar


def test_ctrl_c_aborts_between_steps_and_leaves_the_engine_usable(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, steps = llm.engine.client.core.step, []

    def interrupted_step() -> Any:
        steps.append(1)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return step()

    monkeypatch.setattr(llm.engine.client.core, "step", interrupted_step)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b", "c"], SamplingParams(max_tokens=100, ignore_eos=True), use_tqdm=False)
    assert len(steps) == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert_idle(llm)
    assert llm.generate("a", GREEDY, use_tqdm=False)[0].finished


def test_generate_works_outside_the_main_thread(llm: LLM) -> None:
    outputs: list[Any] = []
    thread = threading.Thread(target=lambda: outputs.extend(llm.generate("a", GREEDY, use_tqdm=False)))
    thread.start()
    thread.join()
    assert outputs[0].finished


def test_two_engines_live_side_by_side_and_one_can_go(tiny_model: Path) -> None:
    first, second = make_llm(tiny_model), make_llm(tiny_model)
    text = first.generate("a", GREEDY, use_tqdm=False)[0].outputs[0].text
    del first
    gc.collect()
    assert second.generate("a", GREEDY, use_tqdm=False)[0].outputs[0].text == text


def test_settings_that_cannot_work_are_refused_at_the_start(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="no setting 'max_sequences'"):
        make_llm(tiny_model, max_sequences=3)
    with pytest.raises(ConfigError, match="made for at most 512"):
        make_llm(tiny_model, max_model_len=1024)
    with pytest.raises(ConfigError, match="without chunked prefill it must be at least max_model_len"):
        make_llm(tiny_model, enable_chunked_prefill=False, max_num_batched_tokens=64)
    with pytest.raises(ConfigError, match="no file"):
        make_llm(tiny_model, chat_template="nowhere.jinja")
    with pytest.raises(ModelNotFoundError, match="no-such-model"):
        LLM("./no-such-model")


def test_a_cache_too_small_for_the_context_says_what_fits(tiny_model: Path) -> None:
    with pytest.raises(
        MemoryError, match=r"max_model_len=512.*give it more with num_blocks_override.*at most 144"
    ):
        make_llm(tiny_model, num_blocks_override=10)
    with pytest.raises(MemoryError, match="give it more with kv_cache_memory"):
        make_llm(tiny_model, kv_cache_memory="64KiB")
    llm = make_llm(tiny_model, num_blocks_override=10, max_model_len="auto")
    assert llm.engine.info.max_model_len == 144
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    answer = llm.generate("x" * 100, params, use_tqdm=False)[0].outputs[0]
    assert (len(answer.token_ids), answer.finish_reason) == (44, "length")
    assert_idle(llm)


def test_retention_is_refused_for_a_model_without_windows(tiny_model: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"prefix_cache_retention_interval is 0, but no layer .* leave it out"
    ):
        make_llm(tiny_model, prefix_cache_retention_interval=0)


def test_requests_are_aborted_by_one_id_or_by_many(llm: LLM) -> None:
    for request_id in ("first", "second", "third"):
        llm.engine.add_request(request_id, "hello", GREEDY)
    llm.engine.abort_requests("first")
    llm.engine.abort_requests(["second", "third", "unknown"])
    assert_idle(llm)


def test_the_one_of_several_that_cannot_be_done_in_time_is_named(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_times = llm.engine.client.core.deadlines._step_times
    monkeypatch.setattr(step_times, "estimate_s", lambda num_tokens, num_steps: float(num_tokens))
    with pytest.raises(RequestError, match=r"^request 2 of 3: deadline_s is 30, and .* about 40 s") as raised:
        llm.generate(["fine", "x" * 35, "fine"], GREEDY, use_tqdm=False, deadline_s=30)
    assert raised.value.param == "deadline_s"
    with pytest.raises(RequestError, match=r"^deadline_s is 30, and"):
        llm.generate("x" * 35, GREEDY, use_tqdm=False, deadline_s=30)
    assert_idle(llm)


@pytest.mark.parametrize("given", [[], [GREEDY]])
def test_a_list_of_params_of_another_length_is_refused(llm: LLM, given: list[SamplingParams]) -> None:
    with pytest.raises(RequestError, match=f"{len(given)} items for 2 prompts"):
        llm.generate(["a", "b"], given, use_tqdm=False)


def test_a_cache_of_default_size_is_no_larger_than_could_be_used(tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), block_size=16, max_num_seqs=2)
    assert core_of(llm).kv_cache.pool.num_usable_blocks == 2 * CONTEXT // 16


def test_generate_beside_requests_of_the_engine_takes_only_its_own(tiny_model: Path) -> None:
    llm = make_llm(tiny_model)
    for request_id in ("0", "1"):
        llm.engine.add_request(request_id, "someone else's", SamplingParams(max_tokens=50, ignore_eos=True))
    outputs = llm.generate(["a", "b"], GREEDY, use_tqdm=False)
    assert [output.prompt for output in outputs] == ["a", "b"]
    assert len(core_of(llm).requests) == 2
    llm.engine.abort_requests(["0", "1"])
    assert_idle(llm)


def test_a_model_that_cannot_run_is_refused_before_it_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    alias = dataclasses.replace(ALIASES["smollm2"], architecture="foo")
    monkeypatch.setattr("octavo.frontend.llm_engine.ALIASES", {"foo-1b": alias})
    with pytest.raises(UnsupportedError, match="'foo' is not supported"):
        LLM("foo-1b")
    assert not list(tmp_path.iterdir())
