"""Random requests in caches of random kinds, with steps in flight, against a model of what every block holds.

The model is a worker that is told nothing but what a real one is told, and whose groups assert that whatever
a token sees is its own context. A step may be planned before the last ones have run; they run in order.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, replace

import pytest

from octavo.kv_cache.kv_cache_manager import KVCacheManager
from octavo.scheduler.request import Request
from octavo.types.requests import MediaSpan
from octavo.types.steps import BlockIds
from tests.fake_groups import GARBAGE, ZERO, Memory, Share, make_fake_group
from tests.fakes import EMPTY_PREFIX, MAX_ENCODER_TOKENS, extend_prefix, make_kv_config
from tests.kv_cache.driver import a_request
from tests.seeds import Search

NUM_PARTS = 4
KINDS = ("full", "window", "chunk", "recurrent")  # and perhaps cross attention


@dataclass
class Row:
    """A running request: what the worker has of it, and how far its steps have come."""

    request: Request
    prefixes: list[int]
    tables: list[list[int]]  # the worker's, which only grow
    num_run: int = 0  # tokens that have been computed
    is_void: bool = False

    @property
    def req_id(self) -> str:
        return self.request.request_id


Part = tuple[Row, int, int, BlockIds]  # what a step runs of a row: from, up to, the blocks added before


@dataclass
class Plan:
    """A step."""

    step: int
    zeroed: list[int]
    copies: list[tuple[int, int]]
    parts: list[Part]


class World:
    """A cache, a worker, and requests that come, run and go."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        kinds = rng.sample(KINDS, rng.randint(1, 3)) + rng.choices(["cross"], k=rng.randint(0, 1))
        kinds += rng.choices(kinds, k=rng.randint(0, 1))
        block_size, self.max_chunk = rng.randint(1, 4), rng.randint(1, 12)
        self.depth = rng.randint(0, 2)  # steps that may be in flight
        layout = make_kv_config(
            1, block_size, kinds=kinds, reach=rng.randint(1, 12), max_chunk=self.max_chunk
        )
        num_blocks = rng.randint(layout.num_blocks_for(4), 2 * layout.num_blocks_for(24))
        config = replace(layout, num_blocks=1 + num_blocks)
        self.manager = KVCacheManager(config)
        self.groups = [make_fake_group(group.spec) for group in config.groups]
        self.kv: Memory = [[GARBAGE] * block_size for _ in range(config.num_blocks)]
        self.rows: list[Row] = []
        self.steps: deque[Plan] = deque()  # planned, and not run yet
        self.num_hits = self.num_copies = self.num_steps = 0
        self.num_shared = 0  # requests that hit what a step has yet to write

    def run(self) -> None:
        for _ in range(60):
            self.plan_step()
            while len(self.steps) > self.depth:
                self.run_step(self.steps.popleft())
            self.manager.check()
            if self.rng.random() < 0.3 and self.rows:
                self.leave(self.rng.choice(self.rows))
            if self.rng.random() < 0.02:
                assert self.manager.reset_prefix_cache() is not bool(self.rows)
        while self.rows:
            self.leave(self.rows[0])
        assert self.manager.usage == 0

    def plan_step(self) -> None:
        parts: list[Part] = []
        for row in list(self.rows):
            while row in self.rows:
                part = self.go_on(row)
                if part is not None:
                    parts.append((row, *part))
                    break
                self.leave(self.rows[-1])
        if self.rng.random() < 0.5:
            prompt = self.a_prompt()
            for _ in range(self.rng.choice([1, 1, 2, 3])):
                parts += self.admit(prompt)
        for row, _, stop, _ in parts:
            row.request.num_computed_tokens = stop
        zeroed, copies = self.manager.take_blocks_to_zero(), self.manager.take_block_copies()
        self.num_copies += len(copies)
        self.manager.start_step(self.num_steps)
        self.steps.append(Plan(self.num_steps, zeroed, copies, parts))
        self.num_steps += 1

    def admit(self, prompt: list[int]) -> list[Part]:
        request = self.a_request(prompt)
        hit = self.manager.get_computed_blocks(request)
        left = request.num_tokens - hit.num_tokens
        assert left > 0
        if not self.manager.can_admit(request, hit):
            assert self.rows, "a request that runs alone does not fit"
            return []
        self.num_hits += hit.num_tokens > 0
        self.num_shared += any(block in self.manager._writes._of_block for block in hit.get_all_blocks())
        start, count = hit.num_tokens, self.rng.randint(1, min(left, self.max_chunk))
        block_ids = self.manager.allocate_slots(request, count, hit)
        assert block_ids is not None
        self.rows.append(Row(request, self.prefixes_of(request), [[] for _ in self.groups], num_run=start))
        return [(self.rows[-1], start, start + count, block_ids)]

    def go_on(self, row: Row) -> tuple[int, int, BlockIds] | None:
        request, start = row.request, row.request.num_computed_tokens
        if start == request.num_tokens:
            if row.num_run < start or request.num_tokens > self.manager.max_num_tokens - 1:
                return start, start, tuple([] for _ in self.groups)  # its next token is not known yet
            request.token_ids.append(self.rng.randint(1, 2))
            row.prefixes = self.prefixes_of(request)
        count = self.rng.randint(1, min(request.num_tokens - start, self.max_chunk))
        block_ids = self.manager.allocate_slots(request, count)
        if block_ids is None:
            return None
        return start, start + count, block_ids

    def leave(self, row: Row) -> None:
        """It ends, or is preempted, whatever of it is in flight."""
        self.rows.remove(row)
        self.manager.free(row.request, self.rng.choice([0, row.num_run, row.num_run]))
        self.manager.check()

    def run_step(self, plan: Plan) -> None:
        for block_id in plan.zeroed:
            self.kv[block_id] = [ZERO] * len(self.kv[block_id])
        assert not {source for source, _ in plan.copies} & {target for _, target in plan.copies}
        for source, target in plan.copies:
            self.kv[target] = list(self.kv[source])
        for row, _, _, block_ids in plan.parts:
            for table, new_ids in zip(row.tables, block_ids, strict=True):
                table += new_ids
        parts = [(row, start, stop) for row, start, stop, _ in plan.parts if start < stop]
        for number, group in enumerate(self.groups):
            shares = [Share(row, row.tables[number], start, stop) for row, start, stop in parts]
            for _, table, start, stop in shares:
                assert 0 not in [table[index] for index in group.written(start, stop, len(table))]
            group.forward(self.kv, shares)
        assert self.manager.finish_step(plan.step, lambda request_id: False) == []
        for row, _, stop, _ in plan.parts:
            row.num_run = stop
            if row in self.rows:
                self.manager.cache_blocks(row.request, stop)

    def a_prompt(self) -> list[int]:
        length = self.rng.randint(1, min(self.manager.max_num_tokens - 1, 24))
        return [self.rng.choice([1, 1, 1, 2]) for _ in range(length)]

    def a_request(self, tokens: list[int]) -> Request:
        rng, length = self.rng, len(tokens)
        fields: dict[str, object] = {}
        if rng.random() < 0.2:
            fields["cache_salt"] = "salt"
        if rng.random() < 0.2:
            fields["media"] = (MediaSpan(rng.choice(["a", "b"]), rng.randint(0, length - 1), 1),)
        if rng.random() < 0.2:
            fields["num_encoder_tokens"] = rng.randint(1, MAX_ENCODER_TOKENS)
        return a_request(tokens, **fields)

    def prefixes_of(self, request: Request) -> list[int]:
        """The identity of every beginning, of all that the KV there depends on."""
        prefix, prefixes = hash((EMPTY_PREFIX, request.cache_salt)), []
        for position, token_id in enumerate(request.token_ids):
            seen = [span.identifier for span in request.media if span.offset == position]
            prefix = extend_prefix(prefix, hash((token_id, *seen)))
            prefixes.append(prefix)
        return prefixes


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_every_token_sees_its_own_context_in_caches_of_all_kinds(part: int, search: Search) -> None:
    num_hits = num_copies = num_shared = 0
    seeds = search.seeds(usual=100, large=1000, part=part, num_parts=NUM_PARTS)
    for seed in seeds:
        world = World(random.Random(seed))
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"the world of seed {seed} broke") from error
        num_hits += world.num_hits
        num_copies += world.num_copies
        num_shared += world.num_shared
    assert num_hits > len(seeds)
    assert num_copies > len(seeds) // 2
    assert num_shared > len(seeds) // 2
