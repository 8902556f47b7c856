"""A world for tests: one engine on a fake executor, the random events that befall it, and what must hold."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace

from octavo.errors import RequestError
from octavo.kv_cache.planned_writes import FailedWrites
from octavo.kv_cache.request_blocks import CacheHit
from octavo.scheduler.request import Request
from octavo.scheduler.scheduler import Scheduler
from octavo.types.outputs import EngineCoreOutput, FinishReason
from octavo.types.requests import EngineCoreRequest
from octavo.types.steps import PauseState, SchedulerOutput
from tests.fakes import (
    MAX_ENCODER_TOKENS,
    FakeConstraint,
    FakeExecutor,
    generate_after,
    make_core_of,
    make_kv_config,
    make_params,
    make_request,
    make_scheduler,
)

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


@dataclass
class Turn:
    """A request, or one turn of a session, and what it got so far."""

    request: EngineCoreRequest
    due: list[int]  # the tokens it gets alone
    due_reason: FinishReason
    got: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def take(self, output: EngineCoreOutput) -> None:
        assert self.finish_reason is None, f"{output.request_id} is heard of after its end"
        self.got += output.new_token_ids
        self.finish_reason = output.finish_reason
        if self.finish_reason in (None, *FORCED_ENDS):
            assert self.got == self.due[: len(self.got)], f"{output.request_id} got what it should not"
        else:
            assert (self.got, self.finish_reason) == (self.due, self.due_reason)


class Record:
    """A request's or session's past and its due."""

    def __init__(self, request: EngineCoreRequest, max_model_len: int) -> None:
        self.max_model_len = max_model_len
        self.context: list[int] = []  # of a session: what the turns before have left
        self.turns_to_come: deque[EngineCoreRequest] = deque()
        self.num_refused = 0  # turns that will not run, and whose news are still to come
        self.has_ended = False
        self.is_closing = False
        self.begin(request)

    @property
    def is_idle(self) -> bool:
        return self.turn.finish_reason is not None and not self.has_ended

    def take(self, output: EngineCoreOutput) -> None:
        if self.num_refused:
            assert output.finish_reason in FORCED_ENDS
            self.num_refused -= 1
            return
        self.turn.take(output)
        if self.turn.finish_reason is not None:
            self.leave(ends_session=self.turn.finish_reason in FORCED_ENDS)

    def stop(self) -> None:
        """The turn was stopped from outside: no news come of it."""
        self.turn.finish_reason = FinishReason.STOP
        self.leave(ends_session=False)

    def drop_turns(self) -> None:
        """Those to come will not be asked for; what ends the session does."""
        self.turns_to_come = deque(turn for turn in self.turns_to_come if not turn.resumable)

    def leave(self, ends_session: bool) -> None:
        """The turn is over. A session goes on without the last token it got."""
        self.context = [*self.context, *self.turn.request.prompt_token_ids, *self.turn.got[:-1]]
        if ends_session:
            self.end()
        elif not self.turn.request.resumable:
            self.has_ended = True
        else:
            self.begin_next()

    def end(self) -> None:
        """It ends before its time, and the turns to come are refused: each has its news."""
        self.has_ended = True
        self.num_refused = sum(turn.resumable for turn in self.turns_to_come)

    def add_turn(self, request: EngineCoreRequest) -> None:
        self.is_closing = not request.resumable
        self.turns_to_come.append(request)
        if self.is_idle:
            self.begin_next()

    def begin_next(self) -> None:
        if not self.turns_to_come:
            return
        request = self.turns_to_come[0]
        if not request.resumable:
            self.has_ended = True
        elif len(self.context) + len(request.prompt_token_ids) >= self.max_model_len:
            self.end()
        else:
            self.begin(self.turns_to_come.popleft())

    def begin(self, request: EngineCoreRequest) -> None:
        context = [*self.context, *request.prompt_token_ids]
        self.turn = Turn(request, *generate_after(context, request, self.max_model_len))


class Sharing:
    """What becomes of requests that share what a step has yet to write."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.may_wait: set[str] = set()  # for what another request computes in this step
        self.restarted: set[str] = set()  # in the step before, because what they had hit was garbage
        self._now_restarted: set[str] = set()
        self.num_waits = self.num_restarts = self.num_early_hits = 0
        self._kv_cache = scheduler.kv_cache
        self._get_computed_blocks = self._kv_cache.get_computed_blocks
        self._forget = self._kv_cache._forget
        self._kv_cache.get_computed_blocks = self.get_computed_blocks
        self._kv_cache._forget = self.forget

    def begin_step(self) -> None:
        self.may_wait.clear()
        self.restarted, self._now_restarted = self._now_restarted, set()

    def get_computed_blocks(self, request: Request) -> CacheHit:
        hit = self._get_computed_blocks(request)
        if hit.num_coming_tokens:
            self.num_waits += 1
            self.may_wait.add(request.request_id)
        self.num_early_hits += self._kv_cache._writes.are_in_plan(hit.get_all_blocks(), hit.num_tokens)
        return hit

    def forget(self, failed: FailedWrites) -> list[str]:
        restarted = self._forget(failed)
        self.num_restarts += len(restarted)
        self._now_restarted.update(restarted)
        return restarted


class World:
    """One engine on a fake executor, and the random events that befall it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 0.0
        self.policy = rng.choice(["fcfs", "priority", "fair"])
        self.depth = rng.choice([1, 1, 2, 2, 3])
        self.has_constraint = rng.random() < 0.25
        self.is_throttled = rng.random() < 0.2
        self.constraint = FakeConstraint(blocks_queue=rng.random() < 0.5)
        self.scheduler = self.make_scheduler()
        self.core = make_core_of(self.scheduler, clock=lambda: self.now)
        self.executor: FakeExecutor = self.core.executor.runner
        self.sharing = Sharing(self.scheduler)
        self.stems = [[rng.randrange(1, 9) for _ in range(16)] for _ in range(2)]
        self.last_prompt: list[int] = []
        self.records: dict[str, Record] = {}
        self.num_to_come = rng.randint(1, 8)
        self.rush = rng.choice([0.4, 0.8, 1.0])  # how fast they come
        self.num_added = 0
        self.work = 0  # tokens that all requests come to, each alone
        self.plans: list[SchedulerOutput] = []  # of the last step
        self.was_reset = False  # before this step, taking from those who ran what they had
        self.failed = False  # whether any step failed yet

    def make_scheduler(self) -> Scheduler:
        rng = self.rng
        block_size = rng.choice([1, 2, 3, 4])
        max_model_len = rng.choice([2, 5, 10, 16, 24])
        chunked = rng.random() < 0.7
        most = rng.choice([1, 4, 8, 16, 32]) if chunked else max_model_len + rng.randint(0, 4)
        max_chunk = rng.choice([most, rng.randint(1, most)]) if chunked else most
        kinds, reach = rng.choice(KINDS), rng.randint(1, 10)
        layout = make_kv_config(1, block_size, kinds=kinds, reach=reach, max_chunk=max_chunk)
        # From a prompt token and an answer to three times the longest sequence, and the null block.
        fewest, enough = layout.num_blocks_for(2), 3 * layout.num_blocks_for(max_model_len)
        kv_config = replace(layout, num_blocks=1 + rng.randint(fewest, max(fewest, enough)))
        throttles = {
            "max_num_partial_prefills": rng.choice([None, 1, 2]),
            "prefill_schedule_interval": rng.choice([1, 2, 5]),
            "watermark": rng.choice([0.0, 0.1, 0.3]),
        }
        return make_scheduler(
            kv_config,
            max_model_len,
            [self.constraint] if self.has_constraint else [],
            enable_caching=rng.random() < 0.8,
            retention_interval=rng.choice([None, None, 0, 1, 5]),
            max_num_batched_tokens=most,
            max_num_seqs=rng.choice([1, 3, 5, 8]),
            enable_chunked_prefill=chunked,
            long_prefill_token_threshold=rng.choice([None, None, 0, 1, 3]),
            scheduling_policy=self.policy,
            priority_aging_s=rng.choice([0.0, 300.0]),
            tenant_weights=rng.choice([None, {"a": 2}, {"a": 0.5, "b": 3}]),
            pipeline_depth=self.depth,
            **(throttles if self.is_throttled else {}),
        )

    def run(self) -> None:
        num_steps = 0
        while self.num_to_come or self.core.has_unfinished_requests():
            self.befall()
            self.step()
            num_steps += self.scheduler.pause_state is PauseState.UNPAUSED
            assert num_steps <= (40 + 4 * self.work) * (5 if self.is_throttled else 1), "somebody starves"
        self.check_idle()

    # ------------------------------------------------------------------------------------------------- events

    def befall(self) -> None:
        rng = self.rng
        self.now += rng.choice([0.0, 1.0])
        self.was_reset = False
        while self.num_to_come and rng.random() < self.rush:
            self.num_to_come -= 1
            self.add(f"r{self.num_added}")
        if self.records and rng.random() < 0.04:
            self.abort(rng.choice(list(self.records)), resubmit=rng.random() < 0.3)
        for request_id, record in self.records.items():
            if record.turn.request.resumable and not record.has_ended and rng.random() < 0.1:
                self.go_on(request_id, record)
        if rng.random() < 0.03:
            self.reset_prefix_cache()
        if rng.random() < 0.02:
            self.executor.fails_in = rng.choice(["forward", "sample"])
        if self.has_constraint:
            self.constraint.vetoed = {req_id for req_id in self.scheduler.requests if rng.random() < 0.3}
        self.pause()

    def pause(self) -> None:
        if self.scheduler.pause_state is PauseState.UNPAUSED:
            if self.rng.random() < 0.03:
                self.core.pause(self.rng.choice([PauseState.PAUSED_NEW, PauseState.PAUSED_ALL]))
        elif self.rng.random() < 0.3:
            self.core.pause(PauseState.UNPAUSED)

    def reset_prefix_cache(self) -> None:
        busy = any(request.row >= 0 for request in self.scheduler.requests.values())
        if self.rng.random() < 0.5:
            assert self.core.reset_prefix_cache() is not busy
        else:
            assert self.core.reset_prefix_cache(reset_running_requests=True)
            self.was_reset = True
        self.scheduler.check()

    def make_prompt(self, most: int) -> list[int]:
        rng = self.rng
        if rng.random() < 0.25 and 0 < len(self.last_prompt) <= most:
            return self.last_prompt  # perhaps in the same step
        stem = rng.choice(self.stems)[: rng.randint(0, 8)]
        tail = [rng.randrange(1, 9) for _ in range(rng.choice([0, 1, 1, 2, 5]))]
        self.last_prompt = (stem + tail)[: rng.choice([most, -(-most // 2)])] or [7]
        return self.last_prompt

    def make_request(self, request_id: str, most: int, resumable: bool) -> EngineCoreRequest:
        rng = self.rng
        return make_request(
            request_id,
            self.make_prompt(most),
            rng.choice(PARAMS),
            priority=rng.randint(0, 2) if self.policy == "priority" else 0,
            arrival_time=float(self.num_added // 2 if self.policy == "priority" else self.num_added),
            cache_salt=rng.choice([None, None, None, "pepper"]),
            num_encoder_tokens=rng.choice([0, 0, 1, MAX_ENCODER_TOKENS]),
            tenant=rng.choice("abc"),
            resumable=resumable,
            deadline_s=rng.choice([1.0, 5.0, 20.0]) if rng.random() < 0.05 else None,
        )

    def add(self, request_id: str) -> None:
        most = self.scheduler.max_model_len - 1
        request = self.make_request(request_id, most, resumable=self.rng.random() < 0.15)
        self.num_added += 1
        self.executor.invalid -= {(request_id, length) for length in range(most + 1)}
        if self.rng.random() < 0.06:
            length = self.rng.choice([len(request.prompt_token_ids), self.rng.randint(1, most)])
            self.executor.invalid.add((request_id, length))
        record = Record(request, self.scheduler.max_model_len)
        try:
            self.core.add_request(request)
        except RequestError as error:
            assert "deadline" in str(error)  # noqa: PT017
            return
        self.records[request_id] = record
        self.work += len(request.prompt_token_ids) + len(record.turn.due)

    def go_on(self, request_id: str, record: Record) -> None:
        """A session's next turn, or its end, or somebody has had enough of this turn."""
        what = self.rng.random()
        if what < 0.2 and not record.is_idle:
            if what < 0.1:
                self.core.stop_turns(request_id)
                record.drop_turns()
            else:
                self.core.stop_requests([request_id])
            record.stop()
        elif not record.is_closing:
            turn = self.make_request(request_id, 4, resumable=what < 0.7)
            try:
                self.core.add_request(turn)
            except RequestError as error:
                too_long = record.is_idle and "the prompt has" in str(error)
                assert too_long or "deadline" in str(error)  # noqa: PT017
            else:
                record.add_turn(turn)
                self.work += 2 * self.scheduler.max_model_len

    def abort(self, request_id: str, resubmit: bool) -> None:
        outputs = self.core.abort_requests([request_id, "nobody", request_id])
        record = self.records[request_id]
        if record.is_idle:
            record.end()
        for output in outputs:
            record.take(output)
        assert record.has_ended
        self.scheduler.check()
        if resubmit and record.num_refused == 0:
            self.add(request_id)

    # ----------------------------------------------------------------------------------------------- one step

    def step(self) -> None:
        running = list(self.scheduler.running)
        failing = self.executor.fails_in is not None
        num_plans = len(self.executor.outputs)
        self.sharing.begin_step()
        outputs = self.core.step().outputs
        self.plans = self.executor.outputs[num_plans:]
        self.failed |= failing and self.executor.fails_in is None
        self.scheduler.check()
        for output in outputs:
            self.records[output.request_id].take(output)
            if output.finish_reason is FinishReason.ERROR:
                reason = str(output.stop_reason)
                known = ("not finite", "the deadline", "the prompt has")
                assert self.failed or any(words in reason for words in known), reason
        if self.scheduler.pause_state is PauseState.UNPAUSED:
            self.check_shares(running)
            self.check_admissions()
        if self.has_constraint:
            assert self.constraint.reserved == {request.request_id for request in self.scheduler.running}

    def check_shares(self, running: list[Request]) -> None:
        """Whoever ran before the step was given tokens, preempted, vetoed, or the budget was used up."""
        if self.constraint.vetoed or self.is_throttled or self.policy == "fair" or not self.plans:
            return
        plan = self.plans[0]
        assert (
            plan.num_scheduled_tokens
            or plan.preempted_req_ids
            or plan.finished_req_ids
            or len(self.executor.outputs) > len(self.plans)
            or not self.scheduler.requests
        ), "nothing moves"
        if plan.total_num_scheduled_tokens < self.scheduler.config.max_num_batched_tokens:
            ending = {r.request_id for r in running if r.num_computed_tokens >= r.max_length - 1}
            ended = {r.request_id for r in running if r.row < 0}
            left_out = {r.request_id for r in running} - plan.num_scheduled_tokens.keys() - ending - ended
            assert left_out <= plan.preempted_req_ids, "a running request was forgotten"

    def check_admissions(self) -> None:
        """Nobody was let in before somebody who was due earlier and whom no constraint held back."""
        for plan in self.plans:
            if self.policy != "fair" and not self.was_reset and not self.sharing.restarted:
                assert not (plan.scheduled_new_reqs and plan.preempted_req_ids)
            if not self.scheduler.config.enable_chunked_prefill:
                for request in plan.scheduled_new_reqs:
                    count = plan.num_scheduled_tokens[request.req_id]
                    assert request.num_computed_tokens + count == len(request.token_ids), "a prompt was cut"
        if self.depth > 1 or self.is_throttled or self.policy == "fair" or not self.plans:
            return
        admitted = [
            self.scheduler.requests[new.req_id].order
            for new in self.plans[0].scheduled_new_reqs
            if new.req_id in self.scheduler.requests and self.scheduler.requests[new.req_id].row >= 0
        ]
        assert admitted == sorted(admitted)
        waiting = [*self.scheduler.waiting, *self.scheduler.skipped_waiting]
        left = [
            request.order
            for request in waiting
            if request.request_id not in self.constraint.vetoed | self.sharing.may_wait and request.turn == 0
        ]
        assert not admitted or not left or admitted[-1] < min(left), (
            "somebody was let in before an earlier one"
        )

    def check_idle(self) -> None:
        for request_id, record in self.records.items():
            assert record.has_ended or (record.is_idle and request_id in self.scheduler.idle), (
                f"{request_id} was dropped"
            )
            assert record.num_refused == 0
        self.core.abort_requests(None)
        for _ in range(self.depth + 1):
            self.core.step()  # tells the worker who finished last
        assert not self.executor.rows
        assert not any(self.executor.num_holders)
        pool = self.scheduler.kv_cache.pool
        assert pool.num_free_blocks == pool.num_usable_blocks
        assert self.scheduler.kv_cache.usage == 0
        assert len(self.scheduler._free_rows) == self.scheduler.config.max_num_seqs
        assert not self.constraint.reserved
        assert not self.scheduler._in_flight


PARAMS = [
    *(make_params(max_tokens) for max_tokens in (1, 5, 12, 20, 32, None)),
    make_params(20, ignore_eos=True),
    make_params(12, stop_token_ids=(3, 4, 5, 6)),
    make_params(6, skip_reading_prefix_cache=True),
]
