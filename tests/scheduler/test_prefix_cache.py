"""Cached prefixes under the scheduler: whatever is reused, every request gets what it gets alone.

The fake executor compares the context of every token it runs: a wrong block shows even if no output does.
"""

from __future__ import annotations

import random

import pytest

from octavo.engine.core import EngineCore
from octavo.engine.statistics import Statistics
from octavo.scheduler.scheduler import Scheduler
from octavo.types.outputs import EngineCoreOutput
from octavo.types.params import SamplingParams
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


def ask(
    core: EngineCore, prompts: list[list[int]], params: SamplingParams = ANSWER, **fields: object
) -> list[EngineCoreOutput]:
    """Run `prompts` together; each must get its own answer. Returns the last news of each."""
    first = len(executor_of(core).outputs)
    requests = [
        make_request(f"{first}.{number}", prompt, params, arrival_time=float(number), **fields)
        for number, prompt in enumerate(prompts)
    ]
    for request in requests:
        core.add_request(request)
    news = run_to_end(core)
    for request in requests:
        assert tokens_of(news[request.request_id]) == generate_alone(request, core.scheduler.max_model_len)[0]
    assert core.scheduler.kv_cache.usage == 0
    return [news[request.request_id][-1] for request in requests]


def cached(core: EngineCore, prompt: list[int], **fields: object) -> int:
    """Tokens of `prompt` that come from the cache when it is asked now."""
    return ask(core, [prompt], **fields)[0].num_cached_tokens


def executor_of(core: EngineCore) -> FakeExecutor:
    runner = core.executor.runner
    assert isinstance(runner, FakeExecutor)
    return runner


def num_entries(scheduler: Scheduler) -> int:
    return len(scheduler.kv_cache.pool.index)


def test_the_same_prompt_again_and_again_with_others_between() -> None:
    core = make_core(40)
    prompt = list(range(1, 18))
    assert cached(core, prompt) == 0
    for number in range(4):
        ask(core, [[50 + number] * 9, [60 + number] * 3])
        assert cached(core, prompt) == 16


def test_the_first_turn_of_a_conversation_after_its_third() -> None:
    core = make_core(60)
    turn = list(range(1, 10))
    conversation = list(turn)
    for number in range(3):
        ask(core, [conversation])
        conversation = [*conversation, 90 + number, *range(20 + number, 30)]
    assert cached(core, turn) == 8
    assert cached(core, turn[:4]) == 3
    assert cached(core, turn[:1]) == 0


def test_the_next_turn_reuses_the_answer_too() -> None:
    core = make_core(60)
    prompt = list(range(1, 10))
    answer = generate_alone(make_request("alone", prompt, ANSWER), 1000)[0]
    ask(core, [prompt])
    # The last token of the answer was never run, so 14 tokens are computed: three full blocks, and two.
    assert cached(core, [*prompt, *answer, 99]) == 14


def test_prompts_in_flight_share_what_is_already_computed() -> None:
    core = make_core(60)
    stem = list(range(1, 21))
    core.add_request(make_request("first", stem, ANSWER))
    core.step()
    core.add_request(make_request("second", [*stem, 30], ANSWER))
    core.step()
    (admission,) = executor_of(core).outputs[-1].scheduled_new_reqs
    assert admission.num_computed_tokens == 20
    assert executor_of(core).outputs[-1].num_scheduled_tokens == {"first": 1, "second": 1}
    run_to_end(core)


def test_a_block_that_was_reused_is_not_found_under_its_old_name() -> None:
    core = make_core(8)
    first = [7, 8, 9, 10, 11, 12, 13]
    ask(core, [first])
    for number in range(500):
        ask(core, [[100 + number, *range(8)]])
        assert num_entries(core.scheduler) <= 7
    assert cached(core, first) == 0


def test_nothing_is_lost_over_thousands_of_short_requests() -> None:
    rng = random.Random(5)
    core = make_core(30, max_num_seqs=6)
    stems = [[stem] * 9 for stem in (1, 2, 3)]
    for number in range(3000):
        prompt = [*rng.choice(stems)[: rng.randint(1, 9)], rng.randint(10, 20)]
        core.add_request(make_request(f"r{number}", prompt, make_params(rng.randint(1, 4))))
        fate = rng.random()
        if fate < 0.2:
            core.abort_requests([f"r{rng.randint(max(number - 5, 0), number)}"])
        elif fate < 0.25:
            executor_of(core).fails_in = rng.choice(["forward", "sample"])
        core.step()
        core.check()
    run_to_end(core)
    assert core.scheduler.kv_cache.usage == 0
    assert num_entries(core.scheduler) <= 29


def test_what_a_preemption_recomputes_is_no_cache_hit() -> None:
    """Random prompts that share nothing, in a cache too small for all."""
    core = make_core(9, max_num_seqs=8)
    core.scheduler.table.observer = Statistics(core.scheduler)
    prompts = [[100 * number + 7, *range(6)] for number in range(1, 7)]
    news = ask(core, prompts, make_params(14, ignore_eos=True))
    assert [output.num_cached_tokens for output in news] == [0] * 6
    stats = core.step().scheduler_stats
    assert stats is not None
    counts = stats.prefix_cache
    assert (counts.requests, counts.queries, counts.hits) == (6, 6 * 7, 0)
    assert counts.preempted_hits, "preempted requests do find their own blocks"


def test_a_prefix_that_is_evicted_while_its_request_waits_is_computed_again() -> None:
    core = make_core(9, max_num_seqs=2)
    prompt = list(range(1, 18))
    ask(core, [prompt])
    core.add_request(make_request("other", list(range(100, 113)), make_params(13, ignore_eos=True)))
    core.add_request(make_request("waits", prompt, ANSWER, arrival_time=1.0))
    core.step()
    waiting = core.scheduler.waiting.peek_request()
    assert core.scheduler.kv_cache.get_computed_blocks(waiting).num_tokens == 16, "as when it was looked at"
    news = run_to_end(core)["waits"]
    assert news[-1].num_cached_tokens == 4, "what the other one had not yet taken"
    assert tokens_of(news) == generate_alone(make_request("alone", prompt, ANSWER), 1000)[0]


@pytest.mark.parametrize("block_size", [1, 4, 5])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_beginnings_of_one_text_under_eviction_pressure(block_size: int, policy: str) -> None:
    core = make_core(1 + 32 // block_size, block_size, scheduling_policy=policy, max_num_seqs=16)
    text = list(range(1, 30))
    lengths = [length for times in range(1, 6) for length in (4 * times - 1, 4 * times, 4 * times + 1)]
    for seed in range(10):
        random.Random(seed).shuffle(lengths)
        ask(core, [text[:length] for length in lengths])
    assert any(r.num_computed_tokens for plan in executor_of(core).outputs for r in plan.scheduled_new_reqs)


def test_a_reset_while_requests_run_is_refused_and_changes_nothing() -> None:
    core = make_core(60)
    requests = [make_request(str(number), [*range(1, 10), number], ANSWER) for number in range(4)]
    for request in requests:
        core.add_request(request)
    streamed: dict[str, list[int]] = {}
    while core.has_unfinished_requests():
        for output in core.step().outputs:
            streamed.setdefault(output.request_id, []).extend(output.new_token_ids)
        assert core.reset_prefix_cache() is not core.has_unfinished_requests()
    for request in requests:
        assert streamed[request.request_id] == generate_alone(request, 1000)[0]
    assert cached(core, [*range(1, 10), 0]) == 0


def test_a_reset_while_all_requests_wait_is_safe() -> None:
    core = make_core(60)
    prompt = list(range(1, 18))
    ask(core, [prompt])
    core.add_request(make_request("a", prompt, ANSWER))
    core.scheduler.kv_cache.get_computed_blocks(core.scheduler.requests["a"])
    assert core.reset_prefix_cache()
    news = run_to_end(core)["a"]
    assert news[-1].num_cached_tokens == 0


def test_salts_keep_prompts_apart() -> None:
    core = make_core(60)
    prompt = list(range(1, 10))
    assert [cached(core, prompt, cache_salt=salt) for salt in ("a", "b", None)] == [0, 0, 0]
    assert [cached(core, prompt, cache_salt=salt) for salt in ("a", "b", None)] == [8, 8, 8]


def test_cached_tokens_are_counted_in_every_news_of_a_request() -> None:
    """As far as the core goes."""
    core = make_core(60)
    prompt = list(range(1, 14))
    for expected in (0, 12):
        core.add_request(make_request(f"r{expected}", prompt, ANSWER))
        news = run_to_end(core)[f"r{expected}"]
        assert [output.num_cached_tokens for output in news] == [expected] * 6
