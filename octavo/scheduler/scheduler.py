"""`Scheduler`: which requests run how many tokens in the next step, and what became of them in the last one.

There is no prefill phase and no decode phase: a request has `num_computed_tokens`, wants to reach
`num_planned_tokens`, and each step gives it a share of the token budget. Knows nothing of tensors, text or
clocks. A step may be planned while others are in flight; results come in the order of the plans.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, takewhile

from octavo.config import SchedulerConfig
from octavo.errors import ConfigError
from octavo.kv_cache.kv_cache_manager import KVCacheManager
from octavo.kv_cache.request_blocks import CacheHit
from octavo.scheduler.budget import StepBudget
from octavo.scheduler.constraint import Constraint, create_constraints
from octavo.scheduler.lifecycle import RequestLifecycle
from octavo.scheduler.request import Request, RequestStatus
from octavo.scheduler.request_queue import RequestQueue
from octavo.scheduler.update import ScheduledShare, take_in
from octavo.types.observer import NOBODY, Observer
from octavo.types.outputs import EngineCoreOutputs
from octavo.types.sampling import INVALID_TOKEN_ID
from octavo.types.steps import BlockIds, ModelRunnerOutput, PauseState, SchedulerOutput


class Scheduler(RequestLifecycle):
    """Plans steps and takes their results in: `schedule`, run it, `update_from_output`."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv_cache: KVCacheManager,
        max_model_len: int,
        constraints: Sequence[Constraint] = (),
        observer: Observer = NOBODY,
    ) -> None:
        all_constraints = [*constraints, *create_constraints(config, kv_cache)]
        super().__init__(config, kv_cache, max_model_len, all_constraints, observer)
        _check_chunking(config, self.max_model_len)
        self._in_flight: dict[int, list[ScheduledShare]] = {}  # by the step's number, the oldest first
        self._num_steps = 0

    # ---------------------------------------------------------------------------------------- planning a step

    def schedule(self) -> SchedulerOutput:
        """Give every eligible request its share of the next step. Mutates requests and block ownership."""
        first = self._make_way()
        num_seated = min(len(self.waiting) + len(self.skipped_waiting), len(self._free_rows))
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
                self._preempt(victim)
                if victim is request:
                    return
            self._commit(request, start, count, budget)
            budget.take_running(request, start, count, block_ids)

    def _schedule_waiting(self, budget: StepBudget, first: Request | None) -> None:
        passed_over: list[Request] = []
        while (
            self._free_rows
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
        count = min(request.num_tokens_with_spec, request.max_length - 1) - start
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
        request.row = self._free_rows.pop()
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = hit.num_tokens
        if request.num_cached_tokens < 0:  # what a preemption recomputes is no news to whoever asked
            request.num_cached_tokens = hit.num_tokens
        insort(self.running, request)
        self.policy.begin(request)
        self.observer.request_admitted(request, hit.num_tokens)
        self._commit(request, hit.num_tokens, count, budget)
        budget.take_new(request, hit.num_tokens, count, block_ids)

    def _make_way(self) -> Request | None:
        """Preempt those who must give way to a waiting request that cannot run otherwise (`displaces`).

        Returns the one that can run now and for which others are to leave room in the step, if there is one.
        """
        queue = self._select_waiting_queue_for_scheduling()
        if queue is None or self.pause_state is PauseState.PAUSED_ALL:
            return None
        request = queue.peek_request()
        victims = list(takewhile(partial(self.policy.displaces, request), reversed(self.running)))
        if not victims or request.num_in_flight_tokens:
            return None
        self.kv_cache.give_back_skipped_blocks()
        hit = self.kv_cache.get_computed_blocks(request)
        if self._share(request, hit.num_tokens, self._make_budget(num_seated=1)) == 0:
            return None
        if not self._can_admit(request, hit, self.kv_cache.num_blocks_returned(victims)):
            return None  # it would not do if all of them went
        while victims and not (self._free_rows and self._can_admit(request, hit)):
            self._preempt(victims.pop(0))
        return request

    def _make_budget(self, num_seated: int) -> StepBudget:
        budget = StepBudget(self.config.max_num_batched_tokens, self._num_steps, self.running, num_seated)
        budget.stopped = self.pause_state is PauseState.PAUSED_ALL
        return budget

    def _make_output(self, budget: StepBudget) -> SchedulerOutput:
        output = SchedulerOutput(
            step=self._num_steps,
            scheduled_new_reqs=budget.new_reqs,
            scheduled_cached_reqs=budget.cached_reqs,
            num_scheduled_tokens=budget.num_scheduled_tokens,
            total_num_scheduled_tokens=self.config.max_num_batched_tokens - budget.num_tokens,
            finished_req_ids=self.finished_req_ids,
            preempted_req_ids=self.preempted_req_ids,
            num_common_prefix_blocks=self._num_common_prefix_blocks(),
            scheduled_spec_decode_tokens=budget.drafts,
            feature_data=budget.feature_data,
            kv_cache_block_copies=self.kv_cache.take_block_copies(),
            new_block_ids_to_zero=self.kv_cache.take_blocks_to_zero() or None,
        )
        self.kv_cache.start_step(self._num_steps)
        self.finished_req_ids, self.preempted_req_ids = set(), set()
        for share in budget.scheduled:
            share.put_in_flight()
        self._in_flight[self._num_steps] = budget.scheduled
        self._num_steps += 1
        self.observer.step_planned(output)
        return output

    def _num_common_prefix_blocks(self) -> list[int]:
        if not self.running or not self.config.enable_cascade_attention:
            return [0] * len(self.kv_cache.config.groups)
        return self.kv_cache.get_num_common_prefix_blocks(self.running[0], len(self.running))

    # ------------------------------------------------------------------------------------- taking results in

    def update_from_output(self, output: SchedulerOutput, result: ModelRunnerOutput) -> EngineCoreOutputs:
        """Take in the results of `output`, the oldest step in flight: new tokens, and requests that end."""
        any_stopped = False
        sampled = result.sampled_token_ids
        self._begin_again(
            self.kv_cache.finish_step(output.step, lambda req_id: INVALID_TOKEN_ID in sampled.get(req_id, ()))
        )
        for share in self._in_flight[output.step]:
            if share.is_void:
                continue  # it ended while the step ran
            request = share.request
            news = take_in(share, result)
            if request.row >= 0 and request.status is not RequestStatus.FINISHED_ERROR:  # KV as bad as logits
                self.kv_cache.cache_blocks(request, request.num_good_tokens)
            if news is None:
                continue
            self._news.append(news)
            self._take_drafts(request, result)
            if request.status.is_finished:
                self._handle_stopped_request(request)
                any_stopped = True
        del self._in_flight[output.step]
        if any_stopped:
            self._drop_stopped_from_running()
        return self.take_news(output)

    def _take_drafts(self, request: Request, result: ModelRunnerOutput) -> None:
        """Keep the guesses of what follows the request's last token, unless a step that goes on from it is in
        flight already. A recurrent state cannot be taken back to where drafts were rejected.
        """
        drafts = result.draft_token_ids.get(request.request_id)
        if drafts and not request.num_in_flight_tokens and not self.kv_cache.coordinator.holds_states:
            request.spec_token_ids = drafts

    def fail_step(self, output: SchedulerOutput, reason: str) -> None:
        """A step could not be run, or not be taken in: those of its requests that have not ended end with an
        error. Others go on.
        """
        planned = self._in_flight.pop(output.step, [])  # nothing, where all of it had been taken in
        ids = [share.request.request_id for share in planned if not share.is_void]
        readers = self.kv_cache.fail_steps()
        self._news += self.finish_requests(ids, RequestStatus.FINISHED_ERROR, reason)
        self._begin_again(request_id for request_id in readers if request_id in self.requests)

    def fail_all(self, reason: str) -> None:
        """A step could not be planned, so that nobody's state can be trusted: every request ends with an
        error. Idle sessions are in no plan, and go on.
        """
        self.kv_cache.fail_steps()
        ids = [request_id for request_id in self.requests if request_id not in self.idle]
        self._news += self.finish_requests(ids, RequestStatus.FINISHED_ERROR, reason)

    def _begin_again(self, request_ids: Iterable[str]) -> None:
        """What these running requests found in the prefix cache turned out never to have been written: they
        give up what they computed from it, and steps in flight mean nothing to them.
        """
        requests = [self.requests[request_id] for request_id in request_ids]
        for request in sorted(requests, reverse=True):  # so that they wait in their order
            self.running.remove(request)
            self.running.append(request)
            self._preempt(request)
            request.void_shares()

    def take_news(self, output: SchedulerOutput | None) -> EngineCoreOutputs:
        """What has not been told yet, after the step `output` (None: it could not be planned)."""
        outputs = EngineCoreOutputs(self._news)
        self.observer.step_done(output, outputs)
        self._news = []  # last: what an interrupt keeps from being told now is told after the next step
        return outputs

    def check(self) -> None:
        """Verify every invariant between requests, queues, rows and blocks. Raises AssertionError."""
        self.kv_cache.check()
        waiting = [*self.waiting, *self.skipped_waiting, *self.held]
        idle = list(self.idle.values())
        assert sorted([*self.running, *waiting, *idle]) == sorted(self.requests.values()), (
            "a request is lost or doubled"
        )
        assert self.running == sorted(self.running), "running is out of order"
        rows = [request.row for request in self.running]
        assert sorted(rows + self._free_rows) == list(range(self.config.max_num_seqs)), (
            "rows are lost or doubled"
        )
        assert all(request.status is RequestStatus.RUNNING for request in self.running)
        assert all(request.status is RequestStatus.WAITING_FOR_STREAMING_REQ for request in idle)
        assert all(request.row < 0 and request.num_computed_tokens == 0 for request in waiting + idle)
        owners = self.kv_cache.get_owners()
        assert owners == {request.request_id for request in self.running}, (
            "the requests with blocks are not those that run"
        )
        self._check_in_flight()

    def _check_in_flight(self) -> None:
        in_flight: Counter[str] = Counter()
        for share in chain.from_iterable(self._in_flight.values()):
            if not share.is_void:
                in_flight[share.request.request_id] += share.num_tokens
        for request in self.requests.values():
            assert request.num_in_flight_tokens == in_flight[request.request_id]
            assert request.num_output_placeholders <= len(self._in_flight)


def _check_chunking(config: SchedulerConfig, max_model_len: int) -> None:
    if not config.enable_chunked_prefill and config.max_num_batched_tokens < max_model_len:
        raise ConfigError(
            f"max_num_batched_tokens is {config.max_num_batched_tokens}; without chunked prefill it must be "
            f"at least max_model_len, {max_model_len}, or a long prompt could never run"
        )
