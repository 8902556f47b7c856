"""`Statistics`: counts events of the core and adds the counts to each step's outputs."""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from octavo.types.observer import EngineState, ObservedRequest, Observer
from octavo.types.outputs import EngineCoreOutputs, FinishReason, PrefixCacheStats, SchedulerStats
from octavo.types.steps import SchedulerOutput

NUM_RECENT = 1000  # number of requests in the recent hit rate


class Statistics(Observer):
    """Fills `EngineCoreOutputs.scheduler_stats`. Reads `state` at the end of each step."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._unseen: set[str] = set()  # requests that have not been admitted yet
        self._prompts: dict[str, int] = {}  # by request: prompt tokens still to compute, if there are any
        self._recent: deque[tuple[int, int]] = deque(maxlen=NUM_RECENT)  # queries and hits of each request
        self._prefix_cache = PrefixCacheStats()
        self._num_finished: dict[FinishReason, int] = {}
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._num_preemptions = 0

    @property
    def recent_hit_rate(self) -> float:
        """Share of the prompt tokens of the last NUM_RECENT requests that were hits, 0 to 1."""
        queries = sum(queries for queries, _ in self._recent)
        return sum(hits for _, hits in self._recent) / queries if queries else 0.0

    def request_queued(self, request: ObservedRequest) -> None:
        self._unseen.add(request.request_id)

    def request_admitted(self, request: ObservedRequest, num_cached_tokens: int) -> None:
        queries, stats = request.num_tokens, self._prefix_cache
        if request.request_id not in self._unseen:
            self._prefix_cache = replace(
                stats,
                preempted_requests=stats.preempted_requests + 1,
                preempted_queries=stats.preempted_queries + queries,
                preempted_hits=stats.preempted_hits + num_cached_tokens,
            )
            return
        self._unseen.remove(request.request_id)
        self._prompts[request.request_id] = queries - num_cached_tokens
        self._recent.append((queries, num_cached_tokens))
        self._prefix_cache = replace(
            stats,
            requests=stats.requests + 1,
            queries=stats.queries + queries,
            hits=stats.hits + num_cached_tokens,
        )

    def request_preempted(self, request: ObservedRequest) -> None:
        self._num_preemptions += 1

    def request_finished(self, request: ObservedRequest) -> None:
        self._unseen.discard(request.request_id)
        self._prompts.pop(request.request_id, None)
        reason = request.finish_reason
        if reason is not None:
            count = self._num_finished.get(reason, 0) + 1
            # A new dict, because earlier statistics still refer to the old one.
            self._num_finished = {**self._num_finished, reason: count}

    def step_planned(self, output: SchedulerOutput) -> None:
        for request_id, num_left in list(self._prompts.items()):
            num_now = min(output.num_scheduled_tokens.get(request_id, 0), num_left)
            self._num_prompt_tokens += num_now
            self._prompts[request_id] = num_left - num_now
            if num_now == num_left:
                del self._prompts[request_id]

    def step_done(self, output: SchedulerOutput | None, outputs: EngineCoreOutputs) -> None:
        self._num_generation_tokens += sum([len(each.new_token_ids) for each in outputs.outputs])
        state = self._state
        outputs.scheduler_stats = SchedulerStats(
            state.num_running,
            state.num_waiting,
            state.usage,
            self._prefix_cache,
            self._num_prompt_tokens,
            self._num_generation_tokens,
            self._num_preemptions,
            self._num_finished,
        )
