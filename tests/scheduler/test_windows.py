"""What windows save: memory that a long sequence of a Gemma 3 takes, and preemptions."""

from __future__ import annotations

import pytest

from octavo.kv_cache.layout import plan_kv_cache
from octavo.types.kv import FullAttentionSpec, SlidingWindowSpec
from tests.fakes import (
    FakeExecutor,
    make_core,
    make_core_of,
    make_params,
    make_request,
    run_to_end,
)

CONTEXT = 8192
HEADS = (32, 1, 256, 1024)  # block size, KV heads, head size, bytes of a token's K and V, as in Gemma 3 270M
FULL = FullAttentionSpec(*HEADS)
LAYERS = [FULL if layer % 6 == 5 else SlidingWindowSpec(*HEADS, window=512) for layer in range(18)]


def test_a_context_of_8k_takes_less_than_a_third_of_what_full_layers_would_take() -> None:
    kv_config = plan_kv_cache(LAYERS, 0, max_chunk=512, num_blocks=4000)
    full_config = plan_kv_cache([FULL] * len(LAYERS), 0, max_chunk=512, num_blocks=4000)
    core = make_core_of(kv_config, CONTEXT + 1)
    core.add_request(make_request("a", [7] * (CONTEXT - 40), make_params(40, ignore_eos=True)))
    most = held = 0
    while core.has_unfinished_requests():
        core.step()
        pool = core.scheduler.kv_cache.pool
        if core.has_unfinished_requests():
            held = pool.num_usable_blocks - pool.num_free_blocks
            most = max(most, held)
    full_bytes = full_config.num_blocks_for(CONTEXT) * full_config.block_bytes
    assert held * kv_config.block_bytes < 0.25 * full_bytes, "while it generates"
    assert most * kv_config.block_bytes < 0.3 * full_bytes, "while its prompt runs"
    assert most <= kv_config.num_blocks_for(CONTEXT)


@pytest.mark.parametrize("num_usable_blocks", [3, 4])
def test_blocks_outside_windows_are_given_back_before_a_preemption(num_usable_blocks: int) -> None:
    """The windows of the two requests never lie in more than three blocks together."""
    core = make_core(1 + num_usable_blocks, kinds=["window"], reach=2, max_num_batched_tokens=4)
    for number in range(2):
        prompt = [10 + number] * (1 + number)
        params = make_params(42, ignore_eos=True)
        core.add_request(make_request(str(number), prompt, params, arrival_time=float(number)))
    run_to_end(core)
    executor = core.executor.runner
    assert isinstance(executor, FakeExecutor)
    assert len(executor.outputs) == 42
    assert not any(plan.preempted_req_ids for plan in executor.outputs)
