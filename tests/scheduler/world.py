"""A world for tests: one engine on a fake executor, the random events that befall it, and what must hold."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from octavo.engine.core import EngineCore
from octavo.kv_cache.planned_writes import FailedWrites
from octavo.kv_cache.request_blocks import CacheHit
from octavo.scheduler.request import Request
from octavo.scheduler.scheduler import Scheduler
from octavo.types.outputs import EngineCoreOutput, FinishReason
from octavo.types.requests import EngineCoreRequest
from octavo.types.steps import PauseState, SchedulerOutput
from tests.fakes import (
    MAX_ENCODER_TOKENS,
    VOCAB_SIZE,
    FakeConstraint,
    FakeExecutor,
    FakeRow,
    extend_prefix,
    generate_after,
    make_core_of,
    make_kv_config,
    make_params,
    make_request,
    sample,
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
Event = tuple[int, str, str]
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
        assert output.rejection is None, f"{output.request_id} is rejected after it was accepted"
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
        self.refused: set[str] = set()  # ids of turns that will not run, and whose outputs are still to come
        self.has_ended = False
        self.begin(request)

    @property
    def is_idle(self) -> bool:
        return self.turn.finish_reason is not None and not self.has_ended

    @property
    def can_go_on(self) -> bool:
        return self.turn.request.session_id is not None and not self.has_ended

    @property
    def request_id(self) -> str:
        """Of the turn that is under way, or was last."""
        return self.turn.request.request_id

    @property
    def turn_ids(self) -> list[str]:
        """Of the turn that is under way, or was last, and of those to come."""
        return [self.request_id, *(turn.request_id for turn in self.turns_to_come)]

    def take(self, output: EngineCoreOutput) -> None:
        if output.request_id in self.refused:
            assert output.finish_reason in FORCED_ENDS
            self.refused.remove(output.request_id)
            return
        assert output.request_id == self.request_id
        self.turn.take(output)
        if self.turn.finish_reason is not None:
            self.leave(ends_session=self.turn.finish_reason in FORCED_ENDS)

    def stop(self) -> None:
        """The turn was stopped from outside: no outputs come of it."""
        self.turn.finish_reason = FinishReason.STOP
        self.leave(ends_session=False)

    def leave(self, ends_session: bool) -> None:
        """The turn is over. A session goes on without the last token it got."""
        self.context = [*self.context, *self.turn.request.prompt_token_ids, *self.turn.got[:-1]]
        if ends_session or self.turn.request.session_id is None:
            self.end()
        else:
            self.begin_next()

    def end(self) -> None:
        """It ends, and the turns to come are refused: each has its output."""
        self.has_ended = True
        self.refused |= {turn.request_id for turn in self.turns_to_come}

    def abort(self, request_id: str, outputs: Sequence[EngineCoreOutput]) -> None:
        """A turn is aborted, with these last outputs; the other turns have theirs with the next step."""
        assert [output.request_id for output in outputs] == ([] if self.is_idle else [request_id])
        if not self.is_idle:
            self.refused.add(self.request_id)
        self.turn.finish_reason = self.turn.finish_reason or FinishReason.ABORT
        self.end()
        self.refused.discard(request_id)

    def add_turn(self, request: EngineCoreRequest) -> None:
        self.turns_to_come.append(request)
        if self.is_idle:
            self.begin_next()

    def begin_next(self) -> None:
        if not self.turns_to_come:
            return
        if len(self.context) + len(self.turns_to_come[0].prompt_token_ids) >= self.max_model_len:
            self.end()
        else:
            self.begin(self.turns_to_come.popleft())

    def begin(self, request: EngineCoreRequest) -> None:
        context = [*self.context, *request.prompt_token_ids]
        self.turn = Turn(request, *generate_after(context, request, self.max_model_len))


class Sharing:
    """Watches requests that share what a step has yet to write."""

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
    """One engine on a fake executor, and the random events that befall it.

    An event is (iteration, its name, what it befalls). `only`: leave out every event that is not in it; the
    random numbers of the others stay the same.
    """

    def __init__(self, seed: int, only: Collection[Event] | None = None) -> None:
        self.seed = seed
        self.only = only
        self.events: list[Event] = []  # so far
        self.iteration = 0
        self.rng = rng = random.Random(seed)
        self.now = 0.0
        self.policy = rng.choice(["fcfs", "priority", "fair"])
        self.depth = rng.choice([1, 1, 2, 2, 3])
        self.has_constraint = rng.random() < 0.25
        self.is_throttled = rng.random() < 0.2
        self.constraint = FakeConstraint(blocks_queue=rng.random() < 0.5)
        self.core = self.make_core()
        self.scheduler = self.core.scheduler
        self.executor: FakeExecutor = self.core.executor.runner
        if rng.random() < 0.3:
            self.executor.make_drafts = self.guess
        self.sharing = Sharing(self.scheduler)
        self.stems = [[rng.randrange(1, 9) for _ in range(16)] for _ in range(2)]
        self.popular = self.stems[0][: rng.randint(1, 16)]  # a prompt that many ask, perhaps in the same step
        self.records: dict[str, Record] = {}  # by the id of the request, or of the session
        self.record_of: dict[str, Record] = {}  # by the id of the request, or of the turn
        self.rejected: set[str] = set()  # ids of requests that were rejected and are not heard of yet
        self.num_to_come = rng.randint(1, 8)
        self.rush = rng.choice([0.4, 0.8, 1.0])  # how fast they come
        self.num_added = 0
        self.num_turns = 0  # after the first of their sessions
        self.work = 0  # tokens that all requests come to, each alone
        self.plans: list[SchedulerOutput] = []  # of the last step
        self.was_reset = False  # before this step, taking from those who ran what they had
        self.failed = False  # whether any step failed yet

    def make_core(self) -> EngineCore:
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
        has_windows = set(kinds) & {"window", "chunk"}
        is_fair, caches = self.policy == "fair", rng.random() < 0.8
        return make_core_of(
            kv_config,
            max_model_len,
            [self.constraint] if self.has_constraint else [],
            enable_caching=caches,
            clock=lambda: self.now,
            prefix_cache_retention_interval=rng.choice([None, None, 0, 1, 5])
            if has_windows and caches
            else None,
            max_num_batched_tokens=most,
            max_num_seqs=rng.choice([1, 3, 5, 8]),
            enable_chunked_prefill=chunked,
            long_prefill_token_threshold=rng.choice([None, None, 0, 1, 3]),
            scheduling_policy=self.policy,
            priority_aging_s=rng.choice([0.0, 300.0]) if self.policy == "priority" else 300.0,
            tenant_weights=rng.choice([None, {"a": 2}, {"a": 0.5, "b": 3}]) if is_fair else None,
            pipeline_depth=self.depth,
            **(throttles if self.is_throttled else {}),
        )

    def run(self) -> None:
        num_steps = 0
        while self.num_to_come or self.core.has_unfinished_requests():
            self.iteration += 1
            self.befall()
            self.step()
            num_steps += self.scheduler.table.pause_state is PauseState.UNPAUSED
            assert num_steps <= (40 + 4 * self.work) * (5 if self.is_throttled else 1), "somebody starves"
        self.check_idle()

    # ------------------------------------------------------------------------------------------------- events

    def befall(self) -> None:
        rng = self.rng
        self.now += self.happens("a second passes", 0.5)
        self.was_reset = False
        while self.num_to_come and rng.random() < self.rush:
            self.num_to_come -= 1
            if self.happens("add", 1.0, f"r{self.num_to_come}"):
                self.add(f"r{self.num_to_come}")
        for name, record in list(self.records.items()):
            if self.happens("abort", 0.01, name):
                self.abort(name, resubmit=rng.random() < 0.3)
            elif record.can_go_on and self.happens("go on", 0.1, name):
                self.go_on(name, record)
        if self.happens("reset the prefix cache", 0.03):
            self.reset_prefix_cache()
        if self.happens("fail", 0.02):
            self.executor.fails_in = rng.choice(["forward", "sample"])
        if self.has_constraint:
            vetoes = self.happens("veto", 1.0)
            self.constraint.vetoed = {id for id in self.scheduler.requests if vetoes and rng.random() < 0.3}
        if self.happens("pause", 0.03):
            self.core.pause(rng.choice([PauseState.PAUSED_NEW, PauseState.PAUSED_ALL]))
        elif rng.random() < 0.3:
            self.core.pause(PauseState.UNPAUSED)

    def guess(self, row: FakeRow) -> list[int]:
        """Guesses of what follows a row's tokens, of which the last may be wrong. By the row alone."""
        rng = random.Random(f"{self.seed} {row.req_id} {len(row.token_ids)}")
        prefix, guesses = row.prefixes[-1], []
        for _ in range(rng.randrange(5)):
            guesses.append(sample(prefix))
            prefix = extend_prefix(prefix, guesses[-1])
        if guesses and rng.random() < 0.5:
            guesses[-1] = rng.randrange(VOCAB_SIZE)
        return guesses

    def happens(self, name: str, probability: float, subject: str = "") -> bool:
        """Whether an event occurs now. Its random numbers, and those until the next event, depend only on the
        world's seed and on the event, not on what happened before.
        """
        event = (self.iteration, name, subject)
        self.rng.seed(f"{self.seed} {event}")
        if self.rng.random() >= probability or (self.only is not None and event not in self.only):
            return False
        self.events.append(event)
        return True

    def reset_prefix_cache(self) -> None:
        busy = any(request.row >= 0 for request in self.scheduler.requests.values())
        if self.rng.random() < 0.5:
            assert self.core.reset_prefix_cache() is not busy
        else:
            assert self.core.reset_prefix_cache(reset_running_requests=True)
            self.was_reset = True
        self.core.check()

    def make_prompt(self, most: int) -> list[int]:
        rng = self.rng
        if rng.random() < 0.25:
            return self.popular[:most]
        stem = rng.choice(self.stems)[: rng.randint(0, 8)]
        tail = [rng.randrange(1, 9) for _ in range(rng.choice([0, 1, 1, 2, 5]))]
        return (stem + tail)[: rng.choice([most, -(-most // 2)])] or [7]

    def make_request(self, request_id: str, most: int, **fields: object) -> EngineCoreRequest:
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
            deadline_s=rng.choice([1.0, 5.0, 20.0]) if rng.random() < 0.05 else None,
            **fields,
        )

    def add(self, name: str) -> None:
        """A request, or the first turn of a session; the session has the same name."""
        most = self.scheduler.max_model_len - 1
        session_id = name if self.rng.random() < 0.15 else None
        request = self.make_request(name, most, session_id=session_id)
        self.num_added += 1
        self.may_go_wrong(request, len(request.prompt_token_ids))
        record = Record(request, self.scheduler.max_model_len)
        if self.send(request, record):
            self.records[name] = record
            self.work += len(request.prompt_token_ids) + len(record.turn.due)

    def may_go_wrong(self, request: EngineCoreRequest, length: int) -> None:
        """Perhaps the logits are no numbers after so many tokens, or after some other number of them."""
        most = self.scheduler.max_model_len - 1
        self.executor.invalid -= {(request.request_id, length) for length in range(most + 1)}
        if self.rng.random() < 0.06:
            self.executor.invalid.add(
                (request.request_id, self.rng.choice([length, self.rng.randint(1, most)]))
            )

    def send(self, request: EngineCoreRequest, record: Record) -> bool:
        """Add a request; whether the core accepted it."""
        num_outputs = len(self.scheduler.table.outputs)
        self.core.add_request(request)
        new = self.scheduler.table.outputs[num_outputs:]
        rejections = [output.rejection for output in new if output.rejection is not None]
        if not rejections:
            self.record_of[request.request_id] = record
            return True
        assert [output.request_id for output in new] == [request.request_id]
        if rejections[0].param != "deadline_s":
            assert record.is_idle, "only of an idle session is the length known"
            assert rejections[0].param == "prompt"
        self.rejected.add(request.request_id)
        return False

    def go_on(self, name: str, record: Record) -> None:
        """A session's next turn, or its end, or the user has had enough of this turn, or of all."""
        what = self.rng.random()
        if what < 0.2 and not record.is_idle:
            if what < 0.1:
                self.core.stop_requests(record.turn_ids)
                record.turns_to_come.clear()
            else:
                self.core.stop_requests([record.request_id])
            record.stop()
        elif what < 0.7:
            self.num_turns += 1
            turn = self.make_request(
                f"{name}.{self.num_turns}",
                4,
                session_id=name,
                continues_session=True,
                follows_unfinished=not record.is_idle,
            )
            self.may_go_wrong(turn, self.rng.randint(1, self.scheduler.max_model_len - 1))
            if self.send(turn, record):
                record.add_turn(turn)
                self.work += 2 * self.scheduler.max_model_len
        elif what < 0.8:
            self.end_session(name, record)

    def end_session(self, name: str, record: Record) -> None:
        if self.rng.random() < 0.5:
            self.core.end_session(name)
            record.turn.finish_reason = record.turn.finish_reason or FinishReason.ABORT
            record.turns_to_come.clear()
            record.end()  # and nothing is told of it
        else:
            self.core.end_session(name, "because")
            if record.is_idle:
                record.end()

    def abort(self, name: str, resubmit: bool) -> None:
        record = self.records[name]
        request_id = self.rng.choice(record.turn_ids)
        outputs = self.core.abort_requests([request_id, "nobody", request_id])
        if record.is_idle:
            assert not outputs
            self.core.end_session(name)
        if not record.has_ended:
            record.abort(request_id, outputs)
        self.core.check()
        if resubmit and not record.refused:
            self.add(name)

    # ----------------------------------------------------------------------------------------------- one step

    def step(self) -> None:
        running = list(self.scheduler.running)
        failing = self.executor.fails_in is not None
        num_plans = len(self.executor.outputs)
        self.sharing.begin_step()
        outputs = self.core.step().outputs
        self.plans = self.executor.outputs[num_plans:]
        self.failed |= failing and self.executor.fails_in is None
        self.core.check()
        for output in outputs:
            if output.request_id in self.rejected:
                assert output.rejection is not None
                self.rejected.remove(output.request_id)
                continue
            self.record_of[output.request_id].take(output)
            if output.finish_reason is FinishReason.ERROR:
                reason = str(output.stop_reason)
                known = ("not finite", "the deadline", "the prompt has", "because")
                assert self.failed or any(words in reason for words in known), reason
        if self.scheduler.table.pause_state is PauseState.UNPAUSED:
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
            in_flight = self.executor.outputs[: -len(self.plans)][-self.depth :]
            verifying = {id for output in in_flight for id in output.scheduled_spec_decode_tokens}
            left_out = {r.request_id for r in running} - plan.num_scheduled_tokens.keys()
            left_out -= ending | ended | verifying
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
            if request.request_id not in self.constraint.vetoed | self.sharing.may_wait
            and request.num_restarts == 0
            and "." not in request.request_id
        ]
        assert not admitted or not left or admitted[-1] < min(left), (
            "somebody was let in before an earlier one"
        )

    def check_idle(self) -> None:
        idle = {session.session_id for session in self.scheduler.table.sessions if session.turn is None}
        assert idle == {name for name, record in self.records.items() if not record.has_ended}
        assert all(record.has_ended or record.is_idle for record in self.records.values())
        assert not any(record.refused for record in self.records.values())
        assert not self.rejected
        self.core.abort_requests(None)
        for _ in range(self.depth + 1):
            self.core.step()  # tells the worker who finished last
        assert not self.executor.rows
        assert not any(self.executor.num_holders)
        pool = self.scheduler.kv_cache.pool
        assert pool.num_free_blocks == pool.num_usable_blocks
        assert self.scheduler.kv_cache.usage == 0
        assert len(self.scheduler.table.free_rows) == self.scheduler.config.max_num_seqs
        assert not self.constraint.reserved
        assert not self.scheduler.table.sessions


PARAMS = [
    *(make_params(max_tokens) for max_tokens in (1, 5, 12, 20, 32, None)),
    make_params(20, ignore_eos=True),
    make_params(12, stop_token_ids=(3, 4, 5, 6)),
    make_params(6, skip_reading_prefix_cache=True),
]
