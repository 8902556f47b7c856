"""`Scheduler`: which requests run how many tokens in the next step, and what became of them in the last one.

There is no prefill phase and no decode phase: a request has `num_computed_tokens`, wants to reach
`num_tokens`, and each step gives it a share of the token budget. Knows nothing of tensors, text or clocks.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence

from octavo.config import SchedulerConfig
from octavo.errors import ConfigError, RequestError
from octavo.kv_cache.coordinator import CacheHit
from octavo.kv_cache.kv_cache_manager import KVCacheManager
from octavo.scheduler.budget import StepBudget
from octavo.scheduler.constraint import Constraint, LongPrefill, StepAlignment, TokenBudget, WholePrompts
from octavo.scheduler.request import Request, RequestStatus
from octavo.scheduler.request_queue import RequestQueue, SchedulingPolicy, create_request_queue
from octavo.scheduler.stop import check_stop
from octavo.types.outputs import EngineCoreOutput, EngineCoreOutputs, FinishReason, SchedulerStats
from octavo.types.requests import EngineCoreRequest
from octavo.types.sampling import INVALID_TOKEN_ID
from octavo.types.steps import BlockIds, ModelRunnerOutput, SchedulerOutput


class Scheduler:
    """Owns every unfinished request. One step: `schedule`, run it, `update_from_output`."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv_cache: KVCacheManager,
        max_model_len: int,
        constraints: Sequence[Constraint] = (),
    ) -> None:
        self.config = config
        self.kv_cache = kv_cache
        # No sequence can outgrow the cache, so one that runs alone always gets its blocks.
        self.max_model_len = min(max_model_len, kv_cache.max_num_tokens)
        _check_chunking(config, self.max_model_len)
        self.policy = SchedulingPolicy(config.scheduling_policy)
        self.constraints = [*constraints, *_own_constraints(config, kv_cache.step_alignment)]
        self.requests: dict[str, Request] = {}
        self.waiting = create_request_queue(self.policy)
        # Passed over by a constraint; they keep their places before those who came later.
        self.skipped_waiting = create_request_queue(self.policy)
        # Most urgent first, so that the last one is always the one to preempt.
        self.running: list[Request] = []
        # Since the last step.
        self.finished_req_ids: set[str] = set()
        self._free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        self._num_added = 0

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a request. Raises RequestError for one that can never run, or whose id is taken."""
        if request.request_id in self.requests:
            raise RequestError(f"request id {request.request_id!r} is in use", "request_id")
        if not 0 < len(request.prompt_token_ids) < self.max_model_len:
            raise RequestError(
                f"the prompt has {len(request.prompt_token_ids)} tokens; it must have at least 1 and, to "
                f"leave room for an answer, at most {self.max_model_len - 1}",
                "prompt",
            )
        self._num_added += 1
        # First come, first served goes by this count: clocks step back, and answers to a prompt share a time.
        order = (self._num_added,) if self.policy is SchedulingPolicy.FCFS else ()
        queued = Request(request, self.max_model_len, order)
        self.requests[queued.request_id] = queued
        self.waiting.add_request(queued)

    def finish_requests(
        self, request_ids: Iterable[str] | None, status: RequestStatus, reason: str | None = None
    ) -> list[EngineCoreOutput]:
        """End requests from outside (None = all), in whatever state they are. Unknown ids are ignored."""
        ids = list(self.requests) if request_ids is None else request_ids
        finishing = [
            self.requests[request_id] for request_id in dict.fromkeys(ids) if request_id in self.requests
        ]
        waiting = [request for request in finishing if request.status is not RequestStatus.RUNNING]
        if waiting:
            self.waiting.remove_requests(waiting)
            self.skipped_waiting.remove_requests(waiting)
        for request in finishing:
            request.status = status
            self._free_request(request)
        self._drop_finished_from_running()
        return [
            EngineCoreOutput(request.request_id, [], status.finish_reason, reason) for request in finishing
        ]

    def has_unfinished_requests(self) -> bool:
        """Whether any request is running or waiting."""
        return bool(self.requests)

    def schedule(self) -> SchedulerOutput:
        """Give every eligible request its share of the next step. Mutates requests and block ownership."""
        num_seated = min(len(self.waiting) + len(self.skipped_waiting), len(self._free_rows))
        budget = StepBudget(self.config.max_num_batched_tokens, len(self.running) + num_seated)
        self._schedule_running(budget)
        if num_seated and not budget.preempted:  # memory is short: admit nobody on top of a preemption
            self._schedule_waiting(budget)
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
                victim = self.running[-1]
                self._preempt(victim, budget)
                if victim is request:
                    return
            self._commit(request, start, count, budget)
            budget.take_running(request, count, block_ids)

    def _schedule_waiting(self, budget: StepBudget) -> None:
        passed_over: list[Request] = []
        while (
            self._free_rows
            and not budget.stopped
            and (queue := self._select_waiting_queue_for_scheduling()) is not None
        ):
            request = queue.peek_request()
            hit = self.kv_cache.get_computed_blocks(request)
            count = self._share(request, hit.num_tokens, budget)
            if count == 0 and not budget.stopped:
                passed_over.append(queue.pop_request())
                continue
            if count == 0 or not self.kv_cache.can_admit(request, hit):
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
        """Tokens `request` may run from `start` once every constraint has had its say; 0 = none now."""
        count = request.num_tokens - start
        for constraint in self.constraints:
            count = constraint.limit(request, start, count, budget)
            if count <= 0:
                budget.stopped |= constraint.blocks_queue
                return 0
        return count

    def _commit(self, request: Request, start: int, count: int, budget: StepBudget) -> None:
        for constraint in self.constraints:
            constraint.commit(request, start, count, budget)

    def _admit(
        self, request: Request, hit: CacheHit, count: int, block_ids: BlockIds, budget: StepBudget
    ) -> None:
        """A waiting request, whose blocks are secured, takes a row and runs."""
        request.row = self._free_rows.pop()
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = hit.num_tokens
        if request.num_cached_tokens < 0:  # what a preemption recomputes is no news to whoever asked
            request.num_cached_tokens = min(hit.num_tokens, request.num_prompt_tokens)
        insort(self.running, request)
        self._commit(request, hit.num_tokens, count, budget)
        budget.take_new(request, count, block_ids)

    def _preempt(self, victim: Request, budget: StepBudget) -> None:
        """Take everything from the least urgent running request; it recomputes its tokens later."""
        last = self.running.pop()
        assert last is victim, "a victim is always the least urgent"
        self._release(victim, victim.num_computed_tokens)
        victim.status = RequestStatus.PREEMPTED
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.waiting.prepend_request(victim)
        budget.preempted.append(victim)

    def _make_output(self, budget: StepBudget) -> SchedulerOutput:
        common = (
            self.kv_cache.get_num_common_prefix_blocks(self.running[0], len(self.running))
            if self.running
            else []
        )
        output = SchedulerOutput(
            scheduled_new_reqs=budget.new_reqs,
            scheduled_cached_reqs=budget.cached_reqs,
            num_scheduled_tokens=budget.num_scheduled_tokens,
            total_num_scheduled_tokens=self.config.max_num_batched_tokens - budget.num_tokens,
            finished_req_ids=self.finished_req_ids,
            preempted_req_ids={request.request_id for request in budget.preempted},
            num_common_prefix_blocks=common,
            new_block_ids_to_zero=self.kv_cache.take_blocks_to_zero() or None,
            kv_cache_block_copies=self.kv_cache.take_block_copies(),
        )
        self.finished_req_ids = set()
        for request, count in budget.scheduled:
            request.num_computed_tokens += count
        return output

    def update_from_output(self, output: SchedulerOutput, result: ModelRunnerOutput) -> EngineCoreOutputs:
        """Take in what a step produced: new tokens, ends, blocks whose content may now be shared."""
        outputs = []
        any_finished = False
        for request_id in output.num_scheduled_tokens:
            request = self.requests.get(request_id)
            if request is None or request.row < 0:
                continue  # aborted while the step ran, and perhaps submitted anew
            sampled = result.sampled_token_ids.get(request_id)
            num_new = self._append_output_tokens(request, sampled or [])
            if request.status is not RequestStatus.FINISHED_ERROR:  # its KV is as bad as its logits
                self.kv_cache.cache_blocks(request, request.num_computed_tokens)
            if sampled is None:
                continue  # part of a prompt: nothing to tell
            if request.status.is_finished:
                errored = request.status is RequestStatus.FINISHED_ERROR
                self._free_request(request, 0 if errored else request.num_computed_tokens)
                any_finished = True
            logprobs = result.logprobs.get(request_id)
            outputs.append(
                EngineCoreOutput(
                    request_id,
                    request.token_ids[len(request.token_ids) - num_new :],
                    request.status.finish_reason,
                    request.stop_reason,
                    logprobs[:num_new] if logprobs else None,
                    result.prompt_logprobs.get(request_id),
                    request.num_cached_tokens,
                )
            )
        if any_finished:
            self._drop_finished_from_running()
        return EngineCoreOutputs(outputs, self.make_stats())

    def fail_step(self, output: SchedulerOutput | None, reason: str) -> EngineCoreOutputs:
        """The step could not be run: its requests (without a plan, all) end with an error; others go on."""
        planned = list(self.requests) if output is None else list(output.num_scheduled_tokens)
        failed = [i for i in planned if i in self.requests and (output is None or self.requests[i].row >= 0)]
        outputs = self.finish_requests(failed, RequestStatus.FINISHED_ERROR, reason)
        # Some may have ended before the failure, and nobody has been told.
        told = {ended.request_id for ended in outputs}
        outputs += [
            EngineCoreOutput(i, [], FinishReason.ERROR, reason)
            for i in planned
            if i not in told and i not in self.requests
        ]
        return EngineCoreOutputs(outputs, self.make_stats())

    def make_stats(self) -> SchedulerStats:
        """The state of the queues and the cache."""
        num_waiting = len(self.waiting) + len(self.skipped_waiting)
        return SchedulerStats(len(self.running), num_waiting, self.kv_cache.usage)

    def _append_output_tokens(self, request: Request, token_ids: Sequence[int]) -> int:
        """Append `token_ids` up to the first that ends the request; returns how many that were."""
        for count, token_id in enumerate(token_ids, start=1):
            if token_id == INVALID_TOKEN_ID:
                request.status = RequestStatus.FINISHED_ERROR
                request.stop_reason = "the model's logits are not finite numbers"
                return count - 1
            request.token_ids.append(token_id)
            if check_stop(request, self.max_model_len):
                return count
        return len(token_ids)

    def _free_request(self, request: Request, num_computed_tokens: int = 0) -> None:
        """Forget a finished request and give back all it held. (`running` is swept by the caller.)

        Its first `num_computed_tokens` tokens can be found in the prefix cache from now on.
        """
        del self.requests[request.request_id]
        self.finished_req_ids.add(request.request_id)
        if request.row >= 0:
            self._release(request, num_computed_tokens)

    def _release(self, request: Request, num_computed_tokens: int) -> None:
        self.kv_cache.free(request, num_computed_tokens)
        for constraint in self.constraints:
            constraint.release(request)
        self._free_rows.append(request.row)
        request.row = -1

    def _drop_finished_from_running(self) -> None:
        self.running = [request for request in self.running if not request.status.is_finished]

    def check(self) -> None:
        """Verify every invariant between requests, queues, rows and blocks. Raises AssertionError."""
        self.kv_cache.check()
        waiting = [*self.waiting, *self.skipped_waiting]
        assert sorted([*self.running, *waiting]) == sorted(self.requests.values()), (
            "a request is lost or doubled"
        )
        assert self.running == sorted(self.running), "running is out of order"
        rows = [request.row for request in self.running]
        assert sorted(rows + self._free_rows) == list(range(self.config.max_num_seqs)), (
            "rows are lost or doubled"
        )
        assert all(request.status is RequestStatus.RUNNING for request in self.running)
        assert all(request.row < 0 and request.num_computed_tokens == 0 for request in waiting)
        holders = self.kv_cache.get_holders()
        assert holders == {request.request_id for request in self.running}, (
            "blocks are held by the wrong requests"
        )


def _check_chunking(config: SchedulerConfig, max_model_len: int) -> None:
    if not config.enable_chunked_prefill and config.max_num_batched_tokens < max_model_len:
        raise ConfigError(
            f"max_num_batched_tokens is {config.max_num_batched_tokens}; without chunked prefill it must be "
            f"at least max_model_len, {max_model_len}, or a long prompt could never run"
        )


def _own_constraints(config: SchedulerConfig, step_alignment: int) -> list[Constraint]:
    threshold = config.long_prefill_token_threshold
    if threshold is None:
        threshold = -(-config.max_num_batched_tokens // 2)
    constraints: list[Constraint] = []
    if not config.enable_chunked_prefill:
        constraints.append(WholePrompts())
    elif threshold > 0:
        constraints.append(LongPrefill(threshold))
    constraints.append(TokenBudget())
    if config.enable_chunked_prefill and step_alignment > 1:
        constraints.append(StepAlignment(step_alignment))
    return constraints
