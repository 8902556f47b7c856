"""`Scheduler`: which requests run how many tokens in the next step, and what became of them in the last one.

There is no prefill phase and no decode phase: a request has `num_computed_tokens`, wants to reach
`num_planned_tokens`, and each step gives it a share of the token budget. Knows nothing of tensors, text or
clocks. A step may be planned while others are in flight; results come in the order of the plans. The requests
themselves, and how they come and end, are in `RequestTable`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, takewhile

from octavo.config import SchedulerConfig
from octavo.errors import ConfigError
from octavo.kv_cache.kv_cache_manager import KVCacheManager
from octavo.kv_cache.request_blocks import CacheHit
from octavo.scheduler.budget import StepBudget
from octavo.scheduler.constraint import Constraint, StatelessConstraint, create_constraints
from octavo.scheduler.request import Request, RequestStatus
from octavo.scheduler.request_queue import RequestQueue
from octavo.scheduler.request_table import RequestTable
from octavo.scheduler.update import PlannedStep, take_in
from octavo.types.observer import NOBODY, Observer
from octavo.types.outputs import EngineCoreOutput, EngineCoreOutputs, Rejection
from octavo.types.requests import EngineCoreRequest
from octavo.types.sampling import INVALID_TOKEN_ID
from octavo.types.steps import BlockIds, ModelRunnerOutput, PauseState, SchedulerOutput


class Scheduler:
    """Plans steps and takes their results in: `schedule`, run it, `update_from_output`."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv_cache: KVCacheManager,
        max_model_len: int,
        constraints: Sequence[Constraint] = (),
        observer: Observer = NOBODY,
    ) -> None:
        self.config = config
        self.kv_cache = kv_cache
        # No sequence can outgrow the cache, so one that runs alone always gets its blocks.
        self.max_model_len = min(max_model_len, kv_cache.max_num_tokens)
        _check_chunking(config, self.max_model_len)
        self.constraints = [*constraints, *create_constraints(config, kv_cache)]
        self._reserving = [each for each in self.constraints if not isinstance(each, StatelessConstraint)]
        self.table = RequestTable(config, kv_cache, self.max_model_len, self._reserving, observer)
        self._num_steps = 0

    # ---------------------------------------------------------------------------------------- planning a step

    def schedule(self) -> PlannedStep:
        """Give every eligible request its share of the next step. Mutates requests and block ownership."""
        self.table.take_prepared()
        first = self._make_way()
        num_seated = min(len(self.waiting) + len(self.skipped_waiting), len(self.table.free_rows))
        budget = self._make_budget(num_seated)
        if first is not None:
            budget.first_tenant = first.tenant
        self._schedule_running(budget)
        if num_seated and not budget.is_short:  # memory is short: admit nobody on top of a preemption
            self._schedule_waiting(budget, first)
        return self._make_output(budget)

    def _schedule_running(self, budget: StepBudget) -> None:
        for request in list(self.running):  # most urgent first; victims are taken from the other end
            if budget.stopped:
                return
            if request.status is not RequestStatus.RUNNING:
                continue  # preempted a moment ago for a more urgent one
            start = request.num_computed_tokens
            count = self._share(request, start, budget)
            if count == 0:
                continue
            while (block_ids := self.kv_cache.allocate_slots(request, count)) is None:
                budget.is_short = True
                victim = self.running[-1]
                self.table.preempt(victim)
                if victim is request:
                    return
            self._commit(request, start, count, budget)
            budget.take_running(request, start, count, block_ids)

    def _schedule_waiting(self, budget: StepBudget, first: Request | None) -> None:
        passed_over: list[Request] = []
        while (
            self.table.free_rows
            and not budget.stopped
            and (queue := self._select_waiting_queue_for_scheduling()) is not None
        ):
            request = queue.peek_request()
            if request.num_in_flight_tokens:
                break  # preempted with a token on its way: it comes back with that, and before anyone begins
            hit = self.kv_cache.get_computed_blocks(request)
            count = self._share(request, hit.num_tokens, budget)
            # Another request computes in this step what this one would: the next step finds it in the cache.
            waits = 0 < count <= hit.num_coming_tokens and request is not first
            if waits or (count == 0 and not budget.stopped):
                passed_over.append(queue.pop_request())
                continue
            if count == 0 or not self._can_admit(request, hit):
                break
            block_ids = self.kv_cache.allocate_slots(request, count, hit)
            assert block_ids is not None, "a request that can be admitted whole fits in part"
            self._admit(queue.pop_request(), hit, count, block_ids, budget)
        self.skipped_waiting.prepend_requests(reversed(passed_over))

    def _select_waiting_queue_for_scheduling(self) -> RequestQueue | None:
        """The queue whose first request is due; None when nobody waits."""
        if self.waiting and self.skipped_waiting:
            return min(self.waiting, self.skipped_waiting, key=lambda queue: queue.peek_request())
        return self.skipped_waiting or self.waiting or None

    def _share(self, request: Request, start: int, budget: StepBudget) -> int:
        """Tokens `request` may run from `start` once every constraint has had its say; 0 = none now, as for
        one that ends with a step in flight.
        """
        # Its last token is sampled and never run.
        num_tokens = request.num_planned_tokens + len(request.spec_token_ids)
        count = min(num_tokens, request.max_length - 1) - start
        if count <= 0 or request.num_drafts_in_flight:  # how many of them are accepted is not known yet
            return 0
        for constraint in self.constraints:
            count = constraint.limit(request, start, count, budget)
            if count <= 0:
                budget.stopped |= constraint.blocks_queue and request.row < 0
                return 0
        return count

    def _commit(self, request: Request, start: int, count: int, budget: StepBudget) -> None:
        for constraint in self._reserving:
            constraint.commit(request, start, count, budget)

    def _can_admit(self, request: Request, hit: CacheHit, num_returned: int = 0) -> bool:
        """Whether it fits beside those who run, when `num_returned` of their blocks have come back."""
        spare = int(self.config.watermark * self.kv_cache.pool.num_usable_blocks) if self.running else 0
        return self.kv_cache.can_admit(request, hit, spare - num_returned)

    def _admit(
        self, request: Request, hit: CacheHit, count: int, block_ids: BlockIds, budget: StepBudget
    ) -> None:
        """A waiting request, whose blocks are secured, takes a row and runs."""
        self.table.admit(request, hit.num_tokens)
        self._commit(request, hit.num_tokens, count, budget)
        budget.take_new(request, hit.num_tokens, count, block_ids)

    def _make_way(self) -> Request | None:
        """Preempt those who must give way to a waiting request that cannot run otherwise (`displaces`).

        Returns the one that can run now and for which others are to leave room in the step, if there is one.
        """
        queue = self._select_waiting_queue_for_scheduling()
        if queue is None or self.table.pause_state is PauseState.PAUSED_ALL:
            return None
        request = queue.peek_request()
        victims = list(takewhile(partial(self.table.policy.displaces, request), reversed(self.running)))
        if not victims or request.num_in_flight_tokens:
            return None
        self.kv_cache.give_back_skipped_blocks()
        hit = self.kv_cache.get_computed_blocks(request)
        if self._share(request, hit.num_tokens, self._make_budget(num_seated=1)) == 0:
            return None
        if not self._can_admit(request, hit, self.kv_cache.num_blocks_returned(victims)):
            return None  # it would not do if all of them went
        while victims and not (self.table.free_rows and self._can_admit(request, hit)):
            self.table.preempt(victims.pop(0))
        return request

    def _make_budget(self, num_seated: int) -> StepBudget:
        budget = StepBudget(self.config.max_num_batched_tokens, self._num_steps, self.running, num_seated)
        budget.stopped = self.table.pause_state is PauseState.PAUSED_ALL
        return budget

    def _make_output(self, budget: StepBudget) -> PlannedStep:
        output = SchedulerOutput(
            scheduled_new_reqs=budget.new_reqs,
            scheduled_cached_reqs=budget.cached_reqs,
            num_scheduled_tokens=budget.num_scheduled_tokens,
            total_num_scheduled_tokens=self.config.max_num_batched_tokens - budget.num_tokens,
            finished_req_ids=self.table.finished_req_ids,
            preempted_req_ids=self.table.preempted_req_ids,
            num_common_prefix_blocks=self._num_common_prefix_blocks(),
            scheduled_spec_decode_tokens=budget.drafts,
            feature_data=budget.feature_data,
            kv_cache_block_copies=self.kv_cache.take_block_copies(),
            new_block_ids_to_zero=self.kv_cache.take_blocks_to_zero() or None,
        )
        step = PlannedStep(output, budget.scheduled, self._num_steps)
        self.kv_cache.start_step(step.number)
        self.table.finished_req_ids, self.table.preempted_req_ids = set(), set()
        for share in budget.scheduled:
            share.put_in_flight()
        self._num_steps += 1
        self.table.observer.step_planned(output)
        return step

    def _num_common_prefix_blocks(self) -> list[int]:
        if not self.running or not self.config.enable_cascade_attention:
            return [0] * len(self.kv_cache.config.groups)
        return self.kv_cache.get_num_common_prefix_blocks(self.running[0], len(self.running))

    # ------------------------------------------------------------------------------------- taking results in

    def update_from_output(self, step: PlannedStep, result: ModelRunnerOutput) -> EngineCoreOutputs:
        """Take in the results of `step`, the oldest step in flight: new tokens, and requests that end."""
        any_stopped = False
        sampled = result.sampled_token_ids
        readers = self.kv_cache.finish_step(
            step.number, lambda req_id: INVALID_TOKEN_ID in sampled.get(req_id, ())
        )
        if readers:
            self._restart(readers)
        for share in step.shares:
            if share.is_void:
                continue  # it ended while the step ran
            request = share.request
            output = take_in(share, result)
            if request.row >= 0 and request.status is not RequestStatus.FINISHED_ERROR:  # KV as bad as logits
                self.kv_cache.cache_blocks(request, request.num_good_tokens)
            if output is None:
                continue
            self.table.outputs.append(output)
            if result.draft_token_ids:
                self._take_drafts(request, result)
            if request.status.is_finished:
                self.table.handle_stopped_request(request)
                any_stopped = True
        step.shares.clear()
        if any_stopped:
            self.table.drop_stopped_from_running()
        return self.take_outputs(step)

    def _take_drafts(self, request: Request, result: ModelRunnerOutput) -> None:
        """Keep the guesses of what follows the last token of a request that runs, unless a step that goes on
        from it is in flight already. A recurrent state cannot be taken back to where drafts were rejected.
        """
        drafts = result.draft_token_ids.get(request.request_id)
        goes_on = request.row >= 0 and not request.num_in_flight_tokens
        if drafts and goes_on and not self.kv_cache.coordinator.holds_states:
            request.spec_token_ids = drafts

    def fail_step(self, step: PlannedStep, reason: str) -> None:
        """End the requests of a step that could not be run, or not be taken in, with an error. Those that
        ended before stay as they are, and other requests go on.
        """
        ids = [share.request.request_id for share in step.shares if not share.is_void]
        readers = self.kv_cache.fail_steps()
        self.table.outputs += self.finish_requests(ids, RequestStatus.FINISHED_ERROR, reason)
        self._restart(request_id for request_id in readers if request_id in self.requests)

    def fail_all(self, reason: str) -> None:
        """End every request with an error: a step could not be planned, so that no request's state can be
        trusted. Idle sessions are in no plan, and go on.
        """
        self.kv_cache.fail_steps()
        ids = list(self.requests)
        self.table.outputs += self.finish_requests(ids, RequestStatus.FINISHED_ERROR, reason)

    def _restart(self, request_ids: Iterable[str]) -> None:
        """Let running requests begin again: what they found in the prefix cache was never written."""
        requests = [self.requests[request_id] for request_id in request_ids]
        for request in sorted(requests, reverse=True):  # so that they wait in their order
            self.running.remove(request)
            self.running.append(request)
            self.table.preempt(request)
            request.restart()

    def fail_overdue(self, request_id: str, deadline_s: float) -> None:
        """End a request that has missed its deadline with an error. It may have ended already."""
        reason = f"the deadline of {deadline_s:g} s has passed"
        self.table.outputs += self.finish_requests([request_id], RequestStatus.FINISHED_ERROR, reason)

    def take_outputs(self, step: PlannedStep | None) -> EngineCoreOutputs:
        """The outputs that have not been taken yet, after `step` (None: no step was run)."""
        outputs = EngineCoreOutputs(self.table.outputs)
        self.table.observer.step_done(None if step is None else step.output, outputs)
        self.table.outputs = []  # last: after an interrupt before this they go with the next step
        return outputs

    # ------------------------------------------------------------------------------------------- the requests

    @property
    def requests(self) -> dict[str, Request]:
        """Every request that has not ended, by its id. Turns to come are in their session."""
        return self.table.requests

    @property
    def running(self) -> list[Request]:
        """Requests that hold a row and blocks, the most urgent first."""
        return self.table.running

    @property
    def waiting(self) -> RequestQueue:
        """Requests that are to run and hold nothing."""
        return self.table.waiting

    @property
    def skipped_waiting(self) -> RequestQueue:
        """Waiting requests that a constraint has passed over. They are looked at again in the next step."""
        return self.table.skipped_waiting

    @property
    def num_running(self) -> int:
        """How many requests hold a row and blocks."""
        return len(self.table.running)

    @property
    def num_waiting(self) -> int:
        """How many requests are to run and hold nothing."""
        table = self.table
        queued = len(table.waiting) + len(table.skipped_waiting) + len(table.paused)
        return queued + len(table.preparing)

    @property
    def usage(self) -> float:
        """Share of the KV cache's blocks that requests hold, 0 to 1."""
        return self.kv_cache.usage

    def add_request(self, request: EngineCoreRequest) -> bool:
        """Queue a request. Returns whether it was accepted (`RequestTable.add_request`)."""
        return self.table.add_request(request)

    def reject(self, request: EngineCoreRequest, rejection: Rejection) -> None:
        """Report that `request` cannot run."""
        self.table.reject(request, rejection)

    def finish_requests(
        self, request_ids: Iterable[str] | None, status: RequestStatus, reason: str | None = None
    ) -> list[EngineCoreOutput]:
        """End requests from outside (`RequestTable.finish_requests`)."""
        return self.table.finish_requests(request_ids, status, reason)

    def has_unfinished_requests(self) -> bool:
        """Whether a request runs or waits, or an output was not taken yet. (Idle sessions do neither.)"""
        return bool(self.table.requests or self.table.outputs)

    def has_requests(self) -> bool:
        """Whether a step is to be planned, if only to tell the workers which requests have finished."""
        return bool(self.table.requests or self.table.finished_req_ids)

    def check(self, planned: Iterable[PlannedStep] = ()) -> None:
        """Verify every invariant between requests, rows, blocks and the `planned` steps, which are in flight.
        Raises AssertionError.
        """
        self.kv_cache.check()
        self.table.check(self.config.max_num_seqs)
        steps = list(planned)
        in_flight: Counter[str] = Counter()
        for share in chain.from_iterable(step.shares for step in steps):
            if not share.is_void:
                in_flight[share.request.request_id] += share.num_tokens
        for request in self.requests.values():
            assert request.num_in_flight_tokens == in_flight[request.request_id]
            assert request.num_output_placeholders <= len(steps)


def _check_chunking(config: SchedulerConfig, max_model_len: int) -> None:
    if not config.enable_chunked_prefill and config.max_num_batched_tokens < max_model_len:
        raise ConfigError(
            f"max_num_batched_tokens is {config.max_num_batched_tokens}; without chunked prefill it must be "
            f"at least max_model_len, {max_model_len}, or a long prompt could never run"
        )
