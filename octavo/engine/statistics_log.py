"""`StatisticsLog`: logs throughput, load and cache hits in a line every ten seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from octavo.engine.statistics import Statistics
from octavo.logs import get_logger
from octavo.types.observer import ObservedRequest, Observer
from octavo.types.outputs import EngineCoreOutputs, SchedulerStats
from octavo.types.steps import SchedulerOutput

logger = get_logger(__name__)

INTERVAL_S = 10.0


class StatisticsLog(Observer):
    """Logs the counts of `statistics` since the last line. `statistics` must observe before this observer
    does. `clock` is monotonic, in seconds.

    While there are requests, it writes a line every INTERVAL_S. When the last request ends, it writes one
    line more, unless the last line is recent and shows no requests: short requests do not get a line each.
    Rates are over the time in which there were requests.
    """

    def __init__(self, statistics: Statistics, clock: Callable[[], float] = time.monotonic) -> None:
        self._statistics = statistics
        self._clock = clock
        self._unfinished: set[str] = set()
        self._active_since = 0.0  # when requests came to an idle engine, or the time of a later line
        self._active_s = 0.0  # seconds with requests since the last line, before _active_since
        self._line_time = -math.inf
        self._line_showed_requests = False
        self._line_stats = SchedulerStats(0, 0, 0.0)

    def request_queued(self, request: ObservedRequest) -> None:
        if not self._unfinished:
            self._active_since = self._clock()
        self._unfinished.add(request.request_id)

    def request_finished(self, request: ObservedRequest) -> None:
        if request.request_id in self._unfinished:
            self._unfinished.remove(request.request_id)
            if not self._unfinished:
                self._active_s += self._clock() - self._active_since

    def step_done(self, output: SchedulerOutput | None, outputs: EngineCoreOutputs) -> None:
        now = self._clock()
        if self._unfinished:
            since = max(self._line_time, self._active_since)
            active_s = self._active_s + now - self._active_since
            due = now - since >= INTERVAL_S
        else:
            active_s = self._active_s
            due = now - self._line_time >= INTERVAL_S or self._line_showed_requests
        if due and active_s > 0:
            stats = outputs.scheduler_stats
            assert stats is not None, "the statistics observe before their log does"
            self._log(stats, active_s)
            self._line_time = self._active_since = now
            self._active_s = 0.0
            self._line_showed_requests = bool(self._unfinished)
            self._line_stats = stats

    def _log(self, stats: SchedulerStats, active_s: float) -> None:
        last = self._line_stats
        num_preemptions = stats.num_preemptions - last.num_preemptions
        logger.info(
            "prompt %.1f tok/s, generation %.1f tok/s, running %d, waiting %d, KV cache %.1f %%, "
            "prefix cache hits %.1f %%%s",
            (stats.num_computed_prompt_tokens - last.num_computed_prompt_tokens) / active_s,
            (stats.num_generation_tokens - last.num_generation_tokens) / active_s,
            stats.num_running_reqs,
            stats.num_waiting_reqs,
            100 * stats.kv_cache_usage,
            100 * self._statistics.recent_hit_rate,
            f", preemptions {num_preemptions}" if num_preemptions else "",
        )
