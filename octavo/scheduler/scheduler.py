"""`Scheduler`: plans how many tokens of which requests the next step runs, and takes in the results.

There is no prefill phase and no decode phase. Each step gives a request a share of the token budget, until
`num_computed_tokens` equals `num_planned_tokens`. A step may be planned while others are in flight. Results
come in the order of the plans. `RequestTable` keeps the requests and their states. The scheduler knows
nothing of tensors, text or clocks.
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
from octavo.types.observer import NO_OBSERVER, Observer
from octavo.types.outputs import EngineCoreOutput, EngineCoreOutputs, Rejection
from octavo.types.requests import EngineCoreRequest
from octavo.types.sampling import INVALID_TOKEN_ID
from octavo.types.steps import BlockIds, ModelRunnerOutput, PauseState, SchedulerOutput


class Scheduler:
    """Plans steps and takes in their results: call `schedule`, run the step, call `update_from_output`."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv_cache: KVCacheManager,
        max_model_len: int,
        constraints: Sequence[Constraint] = (),
        observer: Observer = NO_OBSERVER,
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
        first = self._displace()
        num_startable = min(len(self.waiting) + len(self.skipped_waiting), len(self.table.free_rows))
        budget = self._make_budget(num_startable)
        if first is not None:
            budget.first_tenant = first.tenant
        self._schedule_running(budget)
        if num_startable and not budget.is_short:  # after a preemption there are no blocks to spare
            self._schedule_waiting(budget, first)
        return self._make_output(budget)

    def _schedule_running(self, budget: StepBudget) -> None:
        for request in list(self.running):  # most urgent first; victims are taken from the other end
            if budget.stopped:
                return
            if request.status is not RequestStatus.RUNNING:
                continue  # preempted in this loop for a more urgent request
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
                break  # a step in flight computes its tokens: await the results before later requests
            hit = self.kv_cache.get_computed_blocks(request)
            count = self._share(request, hit.num_tokens, budget)
            # Another request computes these tokens in this step: the next step hits them.
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
        """The queue whose first request is the most urgent waiting one; None if both queues are empty."""
        if self.waiting and self.skipped_waiting:
            return min(self.waiting, self.skipped_waiting, key=lambda queue: queue.peek_request())
        return self.skipped_waiting or self.waiting or None

    def _share(self, request: Request, start: int, budget: StepBudget) -> int:
        """Number of tokens that `request` may run from `start` on, after every constraint's limit. 0 = none
        in this step, for example because a step in flight computes the last of them.
        """
        # The token at max_length is sampled and never run.
        num_tokens = request.num_planned_tokens + len(request.spec_token_ids)
        count = min(num_tokens, request.max_length - 1) - start
        if count <= 0 or request.num_drafts_in_flight:  # how many are accepted is not known yet
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
        """Whether the request fits, if the running requests first give back `num_returned` blocks."""
        spare = int(self.config.watermark * self.kv_cache.pool.num_usable_blocks) if self.running else 0
        return self.kv_cache.can_admit(request, hit, spare - num_returned)

    def _admit(
        self, request: Request, hit: CacheHit, count: int, block_ids: BlockIds, budget: StepBudget
    ) -> None:
        """Give a row and a share of the step to a waiting request that has its blocks."""
        self.table.admit(request, hit.num_tokens)
        self._commit(request, hit.num_tokens, count, budget)
        budget.take_new(request, hit.num_tokens, count, block_ids)

    def _displace(self) -> Request | None:
        """Preempt running requests for the most urgent waiting one, if the policy allows it (`displaces`) and
        it can be admitted in no other way.

        Returns the waiting request if it may displace others and can be admitted now, else None.
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
        if self._share(request, hit.num_tokens, self._make_budget(num_startable=1)) == 0:
            return None
        if not self._can_admit(request, hit, self.kv_cache.num_blocks_returned(victims)):
            return None  # preempting all of them would not free enough blocks
        while victims and not (self.table.free_rows and self._can_admit(request, hit)):
            self.table.preempt(victims.pop(0))
        return request

    def _make_budget(self, num_startable: int) -> StepBudget:
        budget = StepBudget(self.config.max_num_batched_tokens, self._num_steps, self.running, num_startable)
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
        """Take in the results of `step`, the oldest step in flight. Returns the outputs for the front end."""
        any_stopped = False
        sampled = result.sampled_token_ids
        readers = self.kv_cache.finish_step(
            step.number, lambda req_id: INVALID_TOKEN_ID in sampled.get(req_id, ())
        )
        if readers:
            self._restart(readers)
        for share in step.shares:
            if share.is_void:
                continue  # the request ended or restarted while the step ran
            request = share.request
            output = take_in(share, result)
            # After an error the KV may be wrong too.
            if request.row >= 0 and request.status is not RequestStatus.FINISHED_ERROR:
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
        """Keep the drafts of a running request, unless a later step of it is already in flight. Layers with a
        recurrent state allow no drafts, because the state cannot be rolled back after a rejection.
        """
        drafts = result.draft_token_ids.get(request.request_id)
        goes_on = request.row >= 0 and not request.num_in_flight_tokens
        if drafts and goes_on and not self.kv_cache.coordinator.holds_states:
            request.spec_token_ids = drafts

    def fail_step(self, step: PlannedStep, reason: str) -> None:
        """End the requests of a failed step with an error. The step could not be run, or its results could
        not be taken in. Requests that had ended before stay as they are. Requests that rely on blocks
        which the step never wrote begin again, and all other requests go on.
        """
        ids = [share.request.request_id for share in step.shares if not share.is_void]
        readers = self.kv_cache.fail_steps()
        self.table.outputs += self.finish_requests(ids, RequestStatus.FINISHED_ERROR, reason)
        self._restart(request_id for request_id in readers if request_id in self.requests)

    def fail_all(self, reason: str) -> None:
        """End every request with an error. Called when a step could not be planned: then no request's state
        can be trusted. Idle sessions are in no plan, and go on.
        """
        self.kv_cache.fail_steps()
        ids = list(self.requests)
        self.table.outputs += self.finish_requests(ids, RequestStatus.FINISHED_ERROR, reason)

    def _restart(self, request_ids: Iterable[str]) -> None:
        """Preempt running requests so that they begin again. Blocks that they hit were never written."""
        requests = [self.requests[request_id] for request_id in request_ids]
        for request in sorted(requests, reverse=True):  # so that the queue has them in their order
            self.running.remove(request)
            self.running.append(request)
            self.table.preempt(request)
            request.restart()

    def fail_overdue(self, request_id: str, deadline_s: float) -> None:
        """End a request with an error, because its deadline has passed. Does nothing if it has ended."""
        reason = f"the deadline of {deadline_s:g} s has passed"
        self.table.outputs += self.finish_requests([request_id], RequestStatus.FINISHED_ERROR, reason)

    def take_outputs(self, step: PlannedStep | None) -> EngineCoreOutputs:
        """Return the outputs that have not been taken yet, after `step` (None = no step was run)."""
        outputs = EngineCoreOutputs(self.table.outputs)
        self.table.observer.step_done(None if step is None else step.output, outputs)
        self.table.outputs = []  # last: after an interrupt the next call returns them
        return outputs

    # ------------------------------------------------------------------------------------------- the requests

    @property
    def requests(self) -> dict[str, Request]:
        """Every request that has not ended, by its id, without the turns of sessions that have not begun."""
        return self.table.requests

    @property
    def running(self) -> list[Request]:
        """The requests that have a row and blocks, the most urgent first."""
        return self.table.running

    @property
    def waiting(self) -> RequestQueue:
        """The queue of requests that wait for a row and blocks."""
        return self.table.waiting

    @property
    def skipped_waiting(self) -> RequestQueue:
        """Waiting requests that an earlier step skipped. The next step considers them again."""
        return self.table.skipped_waiting

    @property
    def num_running(self) -> int:
        """Number of requests that have a row and blocks."""
        return len(self.table.running)

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait, are paused or are being prepared."""
        table = self.table
        queued = len(table.waiting) + len(table.skipped_waiting) + len(table.paused)
        return queued + len(table.preparing)

    @property
    def usage(self) -> float:
        """Share of the KV cache's blocks that requests have, 0 to 1."""
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
        """End requests in any state (`RequestTable.finish_requests`)."""
        return self.table.finish_requests(request_ids, status, reason)

    def has_unfinished_requests(self) -> bool:
        """Whether any request has not ended, or any output was not taken yet. Idle sessions do not count."""
        return bool(self.table.requests or self.table.outputs)

    def has_requests(self) -> bool:
        """Whether a step must be planned: for requests, or to make the workers release finished ones."""
        return bool(self.table.requests or self.table.finished_req_ids)

    def check(self, planned: Iterable[PlannedStep] = ()) -> None:
        """Verify every invariant between requests, rows, blocks and the steps in flight, `planned`. Raises
        AssertionError.
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
