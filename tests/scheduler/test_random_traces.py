"""Twenty thousand small worlds, each with its own settings and fate: in all of them every promise holds.

A failure prints the seed of its world; `run_world(seed)` runs it again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from octavo.engine import core as engine_core
from octavo.engine.core import EngineCore
from octavo.scheduler.request import Request
from octavo.scheduler.scheduler import Scheduler
from octavo.types.outputs import EngineCoreOutput, FinishReason
from octavo.types.requests import EngineCoreRequest
from tests.fakes import (
    MAX_ENCODER_TOKENS,
    BrokenContract,
    FakeConstraint,
    FakeExecutor,
    generate_alone,
    make_kv_config,
    make_params,
    make_request,
    make_scheduler,
)

NUM_WORLDS = 20_000
NUM_PARTS = 20

# The groups of a world's KV cache.
KINDS = [
    ["full"],
    ["full"],
    ["full"],
    ["full", "full"],
    ["window"],
    ["window", "window", "full"],
    ["chunk", "full"],
    ["chunk", "window"],
    ["recurrent"],
    ["recurrent", "full"],
    ["full", "cross"],
    ["window", "recurrent", "full", "cross", "chunk"],
]

FORCED_ENDS = (FinishReason.ABORT, FinishReason.ERROR)


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_every_promise_holds_in_random_traces(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_core.logger, "disabled", True)  # thousands of steps fail, as they were told to
    for seed in range(part, NUM_WORLDS, NUM_PARTS):
        try:
            run_world(seed)
        except (Exception, BrokenContract) as error:
            raise AssertionError(f"the world of seed {seed} broke: {error!r}") from error


def run_world(seed: int) -> None:
    world = World(random.Random(seed))
    world.run()


@dataclass
class Record:
    """A request's past and its due."""

    request: EngineCoreRequest
    order: tuple[int, float, str]  # smaller = to be admitted earlier
    due: list[int]  # the tokens it gets alone
    due_reason: FinishReason
    got: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def take(self, output: EngineCoreOutput) -> None:
        assert self.finish_reason is None, f"{output.request_id} is heard of after its end"
        self.got += output.new_token_ids
        self.finish_reason = output.finish_reason
        if self.finish_reason in (None, *FORCED_ENDS):
            assert self.got == self.due[: len(self.got)]
        else:
            assert (self.got, self.finish_reason) == (self.due, self.due_reason)


class World:
    """One engine on a fake executor, and the random events that befall it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.policy = rng.choice(["fcfs", "priority"])
        self.has_constraint = rng.random() < 0.25
        self.constraint = FakeConstraint(blocks_queue=rng.random() < 0.5)
        self.core = self.make_core()
        self.scheduler: Scheduler = self.core.scheduler
        self.executor: FakeExecutor = self.core.executor
        self.stems = [[rng.randrange(1, 9) for _ in range(16)] for _ in range(2)]
        self.records: dict[str, Record] = {}
        self.num_to_come = rng.randint(1, 8)
        self.rush = rng.choice([0.4, 0.8, 1.0])  # how fast they come
        self.num_added = 0
        self.work = 0  # tokens that all requests come to, each alone

    def make_core(self) -> EngineCore:
        rng = self.rng
        block_size, max_model_len = rng.choice([1, 2, 3, 4]), rng.choice([2, 5, 10, 16, 24])
        chunked = rng.random() < 0.7
        max_num_batched_tokens = (
            rng.choice([1, 4, 8, 16, 32]) if chunked else max_model_len + rng.randint(0, 4)
        )
        layout = make_kv_config(
            1, block_size, kinds=rng.choice(KINDS), reach=rng.randint(1, 10), max_chunk=max_num_batched_tokens
        )
        # From a prompt token and an answer to three times the longest sequence, and the null block.
        least, most = layout.num_blocks_for(2), 3 * layout.num_blocks_for(max_model_len)
        kv_config = replace(layout, num_blocks=1 + rng.randint(least, max(least, most)))
        scheduler = make_scheduler(
            kv_config,
            max_model_len,
            [self.constraint] if self.has_constraint else [],
            enable_caching=rng.random() < 0.8,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=rng.choice([1, 3, 5, 8]),
            enable_chunked_prefill=chunked,
            long_prefill_token_threshold=rng.choice([None, None, 0, 1, 3]),
            scheduling_policy=self.policy,
        )
        return EngineCore(scheduler, FakeExecutor(kv_config, scheduler.config))

    def run(self) -> None:
        num_steps = 0
        while self.num_to_come or self.core.has_unfinished_requests():
            self.befall()
            self.step()
            num_steps += 1
            assert num_steps <= 30 + 3 * self.work, "somebody starves"
        self.check_idle()

    # ------------------------------------------------------------------------------------------------- events

    def befall(self) -> None:
        rng = self.rng
        while self.num_to_come and rng.random() < self.rush:
            self.num_to_come -= 1
            self.add(f"r{self.num_added}")
        if self.records and rng.random() < 0.04:
            self.abort(rng.choice(list(self.records)), resubmit=rng.random() < 0.3)
        if rng.random() < 0.03:
            busy = any(request.row >= 0 for request in self.scheduler.requests.values())
            assert self.core.reset_prefix_cache() is not busy
        if rng.random() < 0.01:
            self.executor.fails_in = rng.choice(["forward", "sample"])
        if self.has_constraint:
            self.constraint.vetoed = {req_id for req_id in self.scheduler.requests if rng.random() < 0.3}

    def add(self, request_id: str) -> None:
        rng, most = self.rng, self.scheduler.max_model_len - 1
        stem = rng.choice(self.stems)[: rng.randint(0, 8)]
        tail = [rng.randrange(1, 9) for _ in range(rng.choice([0, 1, 1, 2, 5]))]
        request = make_request(
            request_id,
            (stem + tail)[: rng.choice([most, -(-most // 2)])] or [7],
            rng.choice(PARAMS),
            priority=rng.randint(0, 2) if self.policy == "priority" else 0,
            arrival_time=float(self.num_added // 2 if self.policy == "priority" else self.num_added),
            cache_salt=rng.choice([None, None, None, "pepper"]),
            num_encoder_tokens=rng.choice([0, 0, 1, MAX_ENCODER_TOKENS]),
        )
        order = (request.priority, request.arrival_time, request_id)
        due, due_reason = generate_alone(request, self.scheduler.max_model_len)
        self.records[request_id] = Record(request, order, due, due_reason)
        self.num_added += 1
        self.work += len(request.prompt_token_ids) + len(due)
        self.executor.invalid -= {(request_id, length) for length in range(most + 1)}
        if rng.random() < 0.03:
            self.executor.invalid.add(
                (request_id, rng.choice([len(request.prompt_token_ids), rng.randint(1, most)]))
            )
        self.core.add_request(request)

    def abort(self, request_id: str, resubmit: bool) -> None:
        outputs = self.core.abort_requests([request_id, "nobody", request_id])
        record = self.records[request_id]
        assert len(outputs) == (record.finish_reason is None)
        for output in outputs:
            assert output.finish_reason is FinishReason.ABORT
            record.take(output)
        self.scheduler.check()
        if resubmit:
            self.add(request_id)

    # ----------------------------------------------------------------------------------------------- one step

    def step(self) -> None:
        running = list(self.scheduler.running)
        failing = self.executor.fails_in is not None
        outputs = self.core.step().outputs
        self.scheduler.check()
        for output in outputs:
            self.records[output.request_id].take(output)
            if output.finish_reason is FinishReason.ERROR:
                assert failing or "not finite" in str(output.stop_reason)
        self.check_shares(running)
        self.check_admissions()
        if self.has_constraint:
            assert self.constraint.reserved == {request.request_id for request in self.scheduler.running}

    def check_shares(self, running: list[Request]) -> None:
        """Whoever ran before the step was given tokens, preempted, vetoed, or the budget was used up."""
        plan = self.executor.outputs[-1]
        if self.constraint.vetoed:
            return
        assert plan.num_scheduled_tokens or plan.preempted_req_ids or not self.scheduler.requests, (
            "nothing moves"
        )
        if plan.total_num_scheduled_tokens < self.scheduler.config.max_num_batched_tokens:
            left_out = {request.request_id for request in running} - plan.num_scheduled_tokens.keys()
            assert left_out <= plan.preempted_req_ids, "a running request was forgotten"

    def check_admissions(self) -> None:
        """Nobody was let in before somebody who was due earlier and whom no constraint held back."""
        plan = self.executor.outputs[-1]
        assert not (plan.scheduled_new_reqs and plan.preempted_req_ids)
        if not self.scheduler.config.enable_chunked_prefill:
            for request in plan.scheduled_new_reqs:
                count = plan.num_scheduled_tokens[request.req_id]
                assert request.num_computed_tokens + count == len(request.token_ids), "a prompt was cut"
        admitted = [self.records[request.req_id].order for request in plan.scheduled_new_reqs]
        assert admitted == sorted(admitted)
        waiting = {*self.scheduler.waiting, *self.scheduler.skipped_waiting}
        left = [
            self.records[r.request_id].order for r in waiting if r.request_id not in self.constraint.vetoed
        ]
        assert not admitted or not left or admitted[-1] < min(left), (
            "somebody was let in before an earlier one"
        )

    def check_idle(self) -> None:
        for record in self.records.values():
            assert record.finish_reason is not None, f"{record.request.request_id} was dropped"
        self.core.step()  # tells the worker who finished last
        assert not self.executor.rows
        assert not any(self.executor.num_holders)
        pool = self.scheduler.kv_cache.pool
        assert pool.num_free_blocks == pool.num_usable_blocks
        assert self.scheduler.kv_cache.usage == 0
        assert len(self.scheduler._free_rows) == self.scheduler.config.max_num_seqs
        assert not self.constraint.reserved


PARAMS = [
    *(make_params(max_tokens) for max_tokens in (1, 5, 12, 20, 32, None)),
    make_params(20, ignore_eos=True),
    make_params(12, stop_token_ids=(3, 4, 5, 6)),
    make_params(6, skip_reading_prefix_cache=True),
]
