"""`RequestLifecycle`: every unfinished request, where it is, and how it comes, waits, gives way and goes.

Nothing here decides who runs when: that is the scheduler's, which is made of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo.config import SchedulerConfig
from octavo.errors import RequestError
from octavo.kv_cache.kv_cache_manager import KVCacheManager
from octavo.scheduler.constraint import Constraint, StatelessConstraint
from octavo.scheduler.policy import create_policy
from octavo.scheduler.request import Request, RequestStatus
from octavo.scheduler.request_queue import SchedulingPolicy, create_request_queue
from octavo.types.observer import Observer
from octavo.types.outputs import EngineCoreOutput, FinishReason
from octavo.types.requests import EngineCoreRequest
from octavo.types.steps import PauseState


class RequestLifecycle:
    """The states of requests and what they hold. Rows and blocks are given by the scheduler."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv_cache: KVCacheManager,
        max_model_len: int,
        constraints: Sequence[Constraint],
        observer: Observer,
    ) -> None:
        self.config = config
        self.kv_cache = kv_cache
        # No sequence can outgrow the cache, so one that runs alone always gets its blocks.
        self.max_model_len = min(max_model_len, kv_cache.max_num_tokens)
        self.policy = create_policy(config)
        self.constraints = constraints
        self._reserving = [each for each in constraints if not isinstance(each, StatelessConstraint)]
        self.observer = observer
        self.requests: dict[str, Request] = {}
        queue_policy = SchedulingPolicy(config.scheduling_policy)
        self.waiting = create_request_queue(queue_policy)
        # Passed over by a constraint; they keep their places before those who came later.
        self.skipped_waiting = create_request_queue(queue_policy)
        self.pause_state = PauseState.UNPAUSED
        self.held = create_request_queue(queue_policy)  # not to begin while the scheduler is paused
        # Most urgent first, so that the last one is always the one to preempt.
        self.running: list[Request] = []
        self.idle: dict[str, Request] = {}  # sessions between two turns
        # Since the last step: the workers are to forget their rows.
        self.finished_req_ids: set[str] = set()
        self.preempted_req_ids: set[str] = set()
        self._free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        self._news: list[EngineCoreOutput] = []  # to be told with the next step's results

    # ------------------------------------------------------------------------------------- coming and going

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a request, or a session's next turn. Raises RequestError for one that can never run, whose id
        is taken, or whose session has ended.
        """
        session = self.requests.get(request.request_id)
        if session is not None:
            self._add_turn(session, request)
            return
        if request.goes_on:
            raise RequestError("the session has ended; begin another", "session")
        if problem := self._why_too_long(0, request):
            raise RequestError(problem, "prompt")
        queued = Request(request, self.max_model_len)
        self.requests[queued.request_id] = queued
        self._enqueue_waiting_request(queued)

    def finish_requests(
        self, request_ids: Iterable[str] | None, status: RequestStatus, reason: str | None = None
    ) -> list[EngineCoreOutput]:
        """End requests from outside (None = all), sessions too, in whatever state they are. Unknown ids are
        ignored. Returns the news: one for each turn under way or to come.
        """
        ids = list(self.requests) if request_ids is None else request_ids
        finishing = [
            self.requests[request_id] for request_id in dict.fromkeys(ids) if request_id in self.requests
        ]
        num_turns = [request.num_turns_awaited for request in finishing]
        self._remove_waiting([request for request in finishing if request.row < 0])
        for request in finishing:
            request.status = status
            self._free_request(request)
        self._drop_stopped_from_running()
        return [
            EngineCoreOutput(request.request_id, [], status.finish_reason, reason)
            for request, num_turns in zip(finishing, num_turns, strict=True)
            for _ in range(num_turns)
        ]

    def fail_overdue(self, turn: EngineCoreRequest) -> None:
        """`turn` has missed its deadline: its request, session or not, ends with an error, unless `turn` has
        ended before.
        """
        request = self.requests.get(turn.request_id)
        if request is not None and request.awaits(turn):
            reason = f"the deadline of {turn.deadline_s:g} s has passed"
            self._news += self.finish_requests([request.request_id], RequestStatus.FINISHED_ERROR, reason)

    def stop_requests(self, request_ids: Iterable[str]) -> None:
        """End requests of which the front end has had enough (it found a stop string in their text), of a
        session only the turn. Nothing more is heard of them.
        """
        for request_id in request_ids:
            request = self.requests.get(request_id)
            if request is not None and request_id not in self.idle:
                request.status = RequestStatus.FINISHED_STOPPED
                self._handle_stopped_request(request)
        self._drop_stopped_from_running()

    def stop_turns(self, request_id: str) -> None:
        """End of a session the turn under way, and drop those to come as if nobody had asked. It goes on;
        nothing is heard of the turns. An unknown id is ignored.
        """
        session = self.requests.get(request_id)
        while session is not None and session.streaming_queue and session.streaming_queue[0].resumable:
            session.streaming_queue.popleft()
        self.stop_requests([request_id])

    @property
    def num_running(self) -> int:
        """Requests that hold a row and blocks."""
        return len(self.running)

    @property
    def num_waiting(self) -> int:
        """Requests that are to run and hold nothing."""
        return len(self.waiting) + len(self.skipped_waiting) + len(self.held)

    @property
    def usage(self) -> float:
        """Share of the KV cache's blocks that requests hold, 0 to 1."""
        return self.kv_cache.usage

    def has_unfinished_requests(self) -> bool:
        """Whether any request is running or waiting (idle sessions do neither), or has an end to be told."""
        return len(self.requests) > len(self.idle) or bool(self._news)

    def has_requests(self) -> bool:
        """Whether a step is to be planned, if only to tell the workers or the front end who has finished."""
        return self.has_unfinished_requests() or bool(self.finished_req_ids)

    def num_tokens_to_compute(self, request: EngineCoreRequest) -> int:
        """Tokens of a prompt, and for a turn of what its session holds, that are not in the prefix cache now;
        0 for a turn that must wait for another, of which nothing is known yet.
        """
        session = self.requests.get(request.request_id)
        if session is None:
            probe = Request(request, self.max_model_len)
        elif session.is_idle:
            probe = session.copy()
            probe.begin_turn(request, self.max_model_len)
        else:
            return 0
        return probe.num_tokens - self.kv_cache.get_computed_blocks(probe).num_tokens

    def pause(self, state: PauseState) -> None:
        """Let nothing run, or only what has begun, or go on (UNPAUSED)."""
        self.pause_state = state
        going_on = state is PauseState.UNPAUSED
        sources = [self.held] if going_on else [self.waiting, self.skipped_waiting]
        moving = [each for queue in sources for each in queue if each.status is RequestStatus.WAITING]
        # Others may have run meanwhile that came later, so these have been passed over.
        target = self.skipped_waiting if going_on else self.held
        moving = sorted([*target, *moving])
        self._remove_waiting(moving)
        for request in moving:
            target.add_request(request)

    def has_begun_requests(self) -> bool:
        """Whether a request has begun and not ended: with new ones paused, whether there is more to drain."""
        return bool(self.running) or any(
            request.status is RequestStatus.PREEMPTED for request in (*self.waiting, *self.skipped_waiting)
        )

    def preempt_all(self) -> None:
        """Take their blocks from all who run; they begin again with the next step."""
        while self.running:
            self._preempt(self.running[-1])

    def _preempt(self, victim: Request) -> None:
        """Take everything from the least urgent running request; it recomputes its tokens later."""
        last = self.running.pop()
        assert last is victim, "a victim is always the least urgent"
        self._release(victim)
        victim.spec_token_ids = []
        victim.status = RequestStatus.PREEMPTED
        victim.num_preemptions += 1
        self.waiting.prepend_request(victim)
        self.preempted_req_ids.add(victim.request_id)
        self.observer.request_preempted(victim)

    def _handle_stopped_request(self, request: Request) -> None:
        """It has come to an end, as its status says: for good, or only a session's turn."""
        if request.row < 0:
            self._remove_waiting([request])
        if request.resumable and request.status is not RequestStatus.FINISHED_ERROR:
            self._end_turn(request)
        else:
            self._free_request(request)
            self._refuse_turns(request, f"the turn before ended with an error: {request.stop_reason}")

    def _free_request(self, request: Request) -> None:
        """Forget a finished request and give back all it held. (Queues and `running` are the caller's.)"""
        del self.requests[request.request_id]
        if self.idle.pop(request.request_id, None) is None:
            self._leave(request)

    def _leave(self, request: Request) -> None:
        """A request, or a session's turn, is over."""
        self.finished_req_ids.add(request.request_id)
        self.policy.end(request)
        if request.row >= 0:
            self._release(request)
        self.observer.request_finished(request)
        request.end_turn()

    def _release(self, request: Request) -> None:
        """Give back row and blocks. What was computed can be found in the cache, unless it may be garbage."""
        failed = request.status is RequestStatus.FINISHED_ERROR
        self.kv_cache.free(request, 0 if failed else request.num_good_tokens)
        for constraint in self._reserving:
            constraint.release(request)
        self._free_rows.append(request.row)
        request.row = -1
        request.num_computed_tokens = 0

    # ---------------------------------------------------------------------------------------------- sessions

    def _add_turn(self, session: Request, turn: EngineCoreRequest) -> None:
        """A session goes on, or is to end. Raises RequestError where there is none."""
        if not session.resumable or (session.streaming_queue and not session.streaming_queue[-1].resumable):
            raise RequestError(f"request id {turn.request_id!r} is in use", "request_id")
        is_idle = session.request_id in self.idle
        if is_idle and turn.resumable and (problem := self._why_too_long(session.num_tokens, turn)):
            raise RequestError(problem, "prompt")
        session.streaming_queue.append(turn)
        if is_idle:
            self._begin_next_turn(session)

    def _end_turn(self, session: Request) -> None:
        """A session's turn is over. It holds nothing from now on: its blocks stay in the prefix cache until
        memory is wanted, and what is gone by its next turn is computed again.
        """
        self._leave(session)
        del session.block_hashes[session.num_tokens // self.kv_cache.block_size :]
        session.status = RequestStatus.WAITING_FOR_STREAMING_REQ
        self.idle[session.request_id] = session
        self._begin_next_turn(session)

    def _begin_next_turn(self, session: Request) -> None:
        """Begin the next of the queued turns, if there is one. A session ends with one that cannot run."""
        if not session.streaming_queue:
            return
        turn = session.streaming_queue[0]
        if not turn.resumable:
            session.status = RequestStatus.FINISHED_ABORTED
            self._free_request(session)
        elif problem := self._why_too_long(session.num_tokens, turn):
            session.status = RequestStatus.FINISHED_ERROR
            self._free_request(session)
            self._refuse_turns(session, problem)
        else:
            del self.idle[session.request_id]
            session.begin_turn(session.streaming_queue.popleft(), self.max_model_len)
            self._enqueue_waiting_request(session)

    def _refuse_turns(self, session: Request, reason: str) -> None:
        """The turns still to come of a session that has ended end with an error."""
        refused = [turn for turn in session.streaming_queue if turn.resumable]
        self._news += [EngineCoreOutput(turn.request_id, [], FinishReason.ERROR, reason) for turn in refused]

    def _why_too_long(self, num_before: int, request: EngineCoreRequest) -> str | None:
        """What is wrong with the length of a prompt that comes after so many tokens; None = nothing."""
        num_tokens = num_before + len(request.prompt_token_ids)
        if request.prompt_token_ids and num_tokens < self.max_model_len:
            return None
        after = f" after the {num_before} of its session" if num_before else ""
        return (
            f"the prompt has {len(request.prompt_token_ids)} tokens; it must have at least 1 and, to leave "
            f"room for an answer, at most {self.max_model_len - 1 - num_before}{after}"
        )

    # ------------------------------------------------------------------------------------------------ queues

    def _enqueue_waiting_request(self, request: Request) -> None:
        self.policy.rank(request)
        paused = self.pause_state is not PauseState.UNPAUSED
        (self.held if paused else self.waiting).add_request(request)
        self.observer.request_queued(request)

    def _remove_waiting(self, requests: list[Request]) -> None:
        if requests:
            for queue in (self.waiting, self.skipped_waiting, self.held):
                queue.remove_requests(requests)

    def _drop_stopped_from_running(self) -> None:
        self.running = [request for request in self.running if request.row >= 0]
