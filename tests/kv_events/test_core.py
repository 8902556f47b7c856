"""The stream of a whole core: who follows it, or replays it, knows exactly what the prefix cache holds."""

from __future__ import annotations

import random

import pytest

from octavo.engine.core import EngineCore
from octavo.kv_events.observer import KVEventsObserver
from octavo.kv_events.subscriber import CachedBlocks
from tests.fakes import make_core_of, make_kv_config, make_params, make_request
from tests.kv_events.events import follow, publishing, subscribe


@pytest.mark.parametrize("kinds", [["full"], ["window", "window", "full"]], ids=str)
@pytest.mark.parametrize("depth", [1, 2])
def test_a_replayed_stream_rebuilds_the_exact_set_of_cached_blocks(kinds: list[str], depth: int) -> None:
    with publishing() as observer:
        core, first = make_core(observer, kinds, depth), observer.next_sequence
        with subscribe(observer) as follower:
            cached = CachedBlocks()
            cached.apply(follower.take_snapshot())
            for seed in range(3):
                run_requests(core, random.Random(seed))
                follow(follower, cached, observer)
                assert cached.blocks == blocks_in(core)
        with subscribe(observer, next_sequence=first) as late:
            replayed = CachedBlocks()
            follow(late, replayed, observer)
        assert replayed.blocks == blocks_in(core)
        assert core.reset_prefix_cache()
        with subscribe(observer) as restarted:
            snapshot = CachedBlocks()
            snapshot.apply(restarted.take_snapshot())
        assert snapshot.blocks == blocks_in(core) == set()


def make_core(observer: KVEventsObserver, kinds: list[str], depth: int) -> EngineCore:
    """A core with a pool so small that blocks come and go all the time."""
    kv_config = make_kv_config(60, 4, kinds=kinds, max_chunk=16)
    core = make_core_of(kv_config, 64, max_num_batched_tokens=16, pipeline_depth=depth)
    core.scheduler.table.observer.add(observer)
    return core


def run_requests(core: EngineCore, rng: random.Random) -> None:
    for number in range(40):
        prompt = [rng.randrange(1, 3) for _ in range(rng.randrange(1, 30))]
        core.add_request(make_request(f"{number}", prompt, make_params(rng.choice([1, 5, 12]))))
        if rng.random() < 0.3:
            core.abort_requests([f"{rng.randrange(number + 1)}"])
        core.step()
    while core.has_unfinished_requests():
        core.step()


def blocks_in(core: EngineCore) -> set[tuple[bytes, int]]:
    """(hash, group) of every full block that can be found."""
    index = core.scheduler.kv_cache.pool.index
    return {
        (digest, group_id)
        for digest, prefixes in index._by_digest.items()
        for prefix in prefixes
        for group_id, blocks in enumerate(prefix.blocks)
        if blocks
    }
