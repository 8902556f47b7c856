"""The example of the first seed, section 10, number for number: two requests, blocks of 4 tokens.

The seed counts blocks from 0; here block 0 is the null block, so its block_0 is block 1.
"""

from __future__ import annotations

import numpy as np

from octavo.engine.core import EngineCore
from octavo.types.steps import SchedulerOutput
from octavo.worker.block_tables import BlockTables
from tests.fakes import FakeExecutor, make_core, make_params, make_request, run_to_end

BLOCK_SIZE = 4
PROMPT_A = [101, 2023, 3186, 2877, 13]
PROMPT_B = [101, 2023, 3186, 2877, 99]  # shares the first four tokens
ANSWER = make_params(6, ignore_eos=True)


def step(core: EngineCore) -> SchedulerOutput:
    core.step()
    executor = core.executor.runner
    assert isinstance(executor, FakeExecutor)
    return executor.outputs[-1]


def ref_cnt(core: EngineCore, block_id: int) -> int:
    return core.scheduler.kv_cache.pool.blocks[block_id].ref_cnt


def slots(block_ids: list[int], start: int, count: int) -> list[int]:
    """The worker's slot mapping for `count` tokens from `start` on."""
    tables = BlockTables(1, 1, 64, BLOCK_SIZE)
    tables.set_row(0, (block_ids,))
    positions = np.arange(start, start + count)
    return tables.compute_slot_mapping(np.zeros(count, np.int64), positions)[0].tolist()


def test_the_life_of_a_kv_cache_as_the_seed_tells_it() -> None:
    core = make_core(20, BLOCK_SIZE)

    # 10.1 The first prefill: five tokens take two blocks, four slots of the first and one of the second.
    core.add_request(make_request("A", PROMPT_A, ANSWER))
    plan = step(core)
    (new,) = plan.scheduled_new_reqs
    assert (new.num_computed_tokens, new.block_ids) == (0, ([1, 2],))
    assert plan.num_scheduled_tokens == {"A": 5}
    assert slots([1, 2], 0, 5) == [4, 5, 6, 7, 8]  # block 1, offsets 0 to 3, and block 2, offset 0

    # 10.2 Decoding: one token a step; a new block only when the last one has no slot left.
    for position, new_block_ids in [(5, None), (6, None), (7, None), (8, ([3],))]:
        plan = step(core)
        assert plan.scheduled_cached_reqs.req_ids == ["A"]
        assert plan.num_scheduled_tokens == {"A": 1}
        assert plan.scheduled_cached_reqs.new_block_ids == [new_block_ids]
        block_ids = [1, 2, 3]
        assert slots(block_ids, position, 1) == [
            block_ids[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        ]

    # 10.3 Prefix caching: B hits A's first block, skips four tokens, and is given blocks from the second on.
    assert ref_cnt(core, 1) == 1
    core.add_request(make_request("B", PROMPT_B, ANSWER))
    plan = step(core)
    (new,) = plan.scheduled_new_reqs
    assert (new.num_computed_tokens, new.block_ids) == (4, ([1, 4],))
    assert plan.num_scheduled_tokens == {"A": 1, "B": 1}
    assert plan.kv_cache_block_copies == []
    assert slots([1, 4], 4, 1) == [16]
    assert [ref_cnt(core, block_id) for block_id in (1, 2, 3, 4)] == [1, 0, 0, 1], "A has ended in this step"
    run_to_end(core)
    assert core.scheduler.kv_cache.usage == 0


def test_a_hit_adds_a_reference() -> None:
    core = make_core(20, BLOCK_SIZE)
    core.add_request(make_request("A", PROMPT_A, ANSWER))
    core.add_request(make_request("B", PROMPT_B, ANSWER, arrival_time=1.0))
    plan = step(core)
    assert [request.block_ids for request in plan.scheduled_new_reqs] == [([1, 2],), ([1, 3],)]
    assert plan.num_scheduled_tokens == {"A": 5, "B": 1}, "though they arrive together"
    assert [ref_cnt(core, block_id) for block_id in (1, 2, 3)] == [2, 1, 1]
