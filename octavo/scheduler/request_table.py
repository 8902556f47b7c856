"""`RequestTable`: every request that has not ended: being prepared, waiting, paused, running or preempted.

The scheduler owns the table. It decides which requests run in a step, and how many tokens of each.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait

import msgspec

from octavo.config import SchedulerConfig
from octavo.errors import RequestError
from octavo.kv_cache.kv_cache_manager import KVCacheManager
from octavo.scheduler.constraint import Constraint
from octavo.scheduler.policy import create_policy
from octavo.scheduler.request import Request, RequestStatus
from octavo.scheduler.request_queue import SchedulingPolicy, create_request_queue
from octavo.scheduler.sessions import Session, Sessions
from octavo.types.observer import Observer
from octavo.types.outputs import EngineCoreOutput, FinishReason, Rejection
from octavo.types.requests import EngineCoreRequest
from octavo.types.steps import PauseState


class RequestTable:
    """Moves requests between queues and rows. The scheduler gives a request its blocks before `admit`."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv_cache: KVCacheManager,
        max_model_len: int,
        constraints: Sequence[Constraint],
        observer: Observer,
    ) -> None:
        """`constraints` are those that prepare requests, or reserve something for a request that runs."""
        self.kv_cache = kv_cache
        self.max_model_len = max_model_len
        self.observer = observer
        self.policy = create_policy(config)
        self.requests: dict[str, Request] = {}  # by request id; turns to come are in their session
        self.sessions = Sessions()
        queue_policy = SchedulingPolicy(config.scheduling_policy)
        self.waiting = create_request_queue(queue_policy)
        # Waiting requests that a step skipped. They keep their order before requests that arrived later.
        self.skipped_waiting = create_request_queue(queue_policy)
        self.pause_state = PauseState.UNPAUSED
        self.paused = create_request_queue(queue_policy)  # may not begin while the scheduler is paused
        # The most urgent first, so that the last one is the next to preempt.
        self.running: list[Request] = []
        self.free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        # Finished and preempted since the last step was planned. The worker must release their rows.
        self.finished_req_ids: set[str] = set()
        self.preempted_req_ids: set[str] = set()
        self.outputs: list[EngineCoreOutput] = []  # go to the front end with the next step's results
        self.preparing: dict[str, Request] = {}  # by request id: requests in WAITING_FOR_PREPARATION
        self._constraints = constraints

    # --------------------------------------------------------------------------------------- adding requests

    def add_request(self, request: EngineCoreRequest) -> bool:
        """Queue a request, or a turn of a session behind the turns before it.

        Returns False if the request can never run, its id is in use, or its session has ended. An output then
        gives the reason.
        """
        if (rejection := self._why_rejected(request)) is not None:
            self.reject(request, rejection)
            return False
        if request.session_id is None:
            self._accept(Request(request, self.max_model_len))
        else:
            self._begin_next_turn(self.sessions.add_turn(request))
        return True

    def reject(self, request: EngineCoreRequest, rejection: Rejection) -> None:
        """Report that `request` cannot run. Its session, if it has one, stays as it was."""
        session = self.sessions.get(request.session_id)
        if session is not None and request.continues_session:
            session.has_rejected_last = True
        self.outputs.append(
            EngineCoreOutput(
                request.request_id, [], FinishReason.ERROR, rejection.message, rejection=rejection
            )
        )

    def num_tokens_to_compute(self, request: EngineCoreRequest) -> int:
        """Number of tokens of the prompt, and of the session before it, that are not in the prefix cache now.

        0 for a turn that waits for another turn, since the session's length is not known yet.
        """
        session = self.sessions.get(request.session_id)
        if session is not None and session.turn is not None:
            return 0
        context = None if session is None else session.context
        probe = Request(request, self.max_model_len, context)
        return probe.num_tokens - self.kv_cache.get_computed_blocks(probe).num_tokens

    def _why_rejected(self, request: EngineCoreRequest) -> Rejection | None:
        request_id = request.request_id
        if request_id in self.requests or self.sessions.find(request_id) is not None:
            return Rejection(f"request id {request_id!r} is in use", "request_id")
        if (rejection := self.sessions.why_rejected(request)) is not None:
            return rejection
        session = self.sessions.get(request.session_id)
        if session is not None and session.turn is not None:
            return None  # the session's length is not known yet
        return self._why_too_long(request, session)

    def _why_too_long(self, request: EngineCoreRequest, session: Session | None) -> Rejection | None:
        """Why the prompt is too short, or too long after its session's tokens; None if it fits."""
        num_before = len(session.context.token_ids) if session is not None else 0
        num_prompt_tokens = len(request.prompt_token_ids)
        if num_prompt_tokens and num_before + num_prompt_tokens < self.max_model_len:
            return None
        after = f" after the {num_before} of its session" if num_before else ""
        return Rejection(
            f"the prompt has {num_prompt_tokens} tokens; it must have at least 1 and, to leave a token for "
            f"the answer, at most {self.max_model_len - 1 - num_before}{after}",
            "prompt",
        )

    def _begin_next_turn(self, session: Session) -> None:
        """Begin the next turn, if there is one and none is under way. If it cannot run, the session ends."""
        if session.turn is not None or not session.streaming_queue:
            return
        if (problem := self._why_too_long(session.streaming_queue[0], session)) is not None:
            self._fail_session(session, problem.message)
        else:
            self._accept(session.begin_turn(self.max_model_len))

    def _accept(self, request: Request) -> None:
        """Queue a request. If constraints prepare something for it, it is queued when they are done."""
        self.requests[request.request_id] = request
        self.policy.rank(request)
        self.observer.request_queued(request)
        futures = [constraint.prepare(request) for constraint in self._constraints]
        request.preparations = [future for future in futures if future is not None]
        if request.preparations:
            request.status = RequestStatus.WAITING_FOR_PREPARATION
            self.preparing[request.request_id] = request
        else:
            self._enqueue_waiting_request(request)

    def take_prepared(self) -> None:
        """Queue the requests whose preparations are done. A request ends with an error if one has failed."""
        for request in list(self.preparing.values()):
            if not all(future.done() for future in request.preparations):
                continue
            error = next(filter(None, (future.exception() for future in request.preparations)), None)
            if error is None:
                del self.preparing[request.request_id]
                self._enqueue_waiting_request(request)
            else:
                self._fail_preparation(request, error)

    def wait_for_prepared(self, timeout_s: float) -> None:
        """Wait until a preparation is done, but not longer than `timeout_s` seconds."""
        futures = [future for request in self.preparing.values() for future in request.preparations]
        wait([future for future in futures if not future.done()], timeout_s, FIRST_COMPLETED)

    def _fail_preparation(self, request: Request, error: BaseException) -> None:
        request.status = RequestStatus.FINISHED_ERROR
        request.stop_reason = f"{type(error).__name__}: {error}"
        rejection = None
        if isinstance(error, RequestError):
            request.stop_reason = str(error)
            # A session goes on after a rejection, but must end here.
            if self.sessions.find(request.request_id) is None:
                rejection = Rejection(str(error), error.param)
        ended = EngineCoreOutput(request.request_id, [], FinishReason.ERROR, request.stop_reason)
        self.outputs.append(msgspec.structs.replace(ended, rejection=rejection))
        self.handle_stopped_request(request)

    def _enqueue_waiting_request(self, request: Request) -> None:
        request.status = RequestStatus.WAITING
        is_paused = self.pause_state is not PauseState.UNPAUSED
        (self.paused if is_paused else self.waiting).add_request(request)

    # --------------------------------------------------------------------------------------- ending requests

    def finish_requests(
        self, request_ids: Iterable[str] | None, status: RequestStatus, reason: str | None = None
    ) -> list[EngineCoreOutput]:
        """End requests in any state. None = all requests and all sessions. Unknown ids are ignored.

        If a request is a turn of a session, the session and its other turns end too. Returns an output for
        each request that this call ends.
        """
        ids: dict[str, None] = {}  # in order, each once
        for request_id in list(self.requests) if request_ids is None else request_ids:
            if (session := self.sessions.find(request_id)) is not None:
                ids |= dict.fromkeys(self.sessions.end(session))
            elif request_id in self.requests:
                ids[request_id] = None
        if request_ids is None:
            self.sessions.end_all()
        finishing = [self.requests[request_id] for request_id in ids if request_id in self.requests]
        self._remove_waiting([request for request in finishing if request.row < 0])
        for request in finishing:
            request.status = status
            self._free_request(request)
        self.drop_stopped_from_running()
        return [EngineCoreOutput(request_id, [], status.finish_reason, reason) for request_id in ids]

    def abort_requests(self, request_ids: Iterable[str] | None) -> list[EngineCoreOutput]:
        """End requests (None = all requests and all sessions). Returns their outputs.

        If a request is a turn of a session, the session's other turns end too. Their outputs go to the front
        end with the next step's.
        """
        ids = None if request_ids is None else dict.fromkeys(request_ids)
        ended = self.finish_requests(ids, RequestStatus.FINISHED_ABORTED)
        if ids is not None:
            self.outputs += [output for output in ended if output.request_id not in ids]
        return [output for output in ended if ids is None or output.request_id in ids]

    def end_session(self, session_id: str, error: str | None = None) -> None:
        """End a session and its turns. An unknown id is ignored.

        The turns get no output, unless `error` is given. It is the error that ended an earlier turn; each
        remaining turn then gets an output with this error.
        """
        session = self.sessions.get(session_id)
        if session is None:
            return
        if not (turn_ids := session.turn_ids):
            self.sessions.end(session)
        elif error is None:
            self.finish_requests(turn_ids, RequestStatus.FINISHED_ABORTED)
        else:
            self.outputs += self.finish_requests(
                turn_ids, RequestStatus.FINISHED_ERROR, _because_of_turn_before(error)
            )

    def stop_requests(self, request_ids: Iterable[str]) -> None:
        """End requests without an output, because the front end needs no more of them. Unknown ids are
        ignored.

        A session goes on after a stopped turn, and keeps the turn's prompt and its answer so far. A stopped
        turn that has not begun is dropped.
        """
        ids = dict.fromkeys(request_ids)
        self.sessions.drop_turns(ids)
        for request in [self.requests[request_id] for request_id in ids if request_id in self.requests]:
            request.status = RequestStatus.FINISHED_STOPPED
            self.handle_stopped_request(request)
        self.drop_stopped_from_running()

    def handle_stopped_request(self, request: Request) -> None:
        """Release a request whose status is FINISHED_*. Its session goes on, except after an error."""
        if request.row < 0:
            self._remove_waiting([request])
        self._free_request(request)
        session = self.sessions.find(request.request_id)
        if session is None:
            return
        self.sessions.end_turn(session, self.kv_cache.block_size)
        if request.status is RequestStatus.FINISHED_ERROR:
            self._fail_session(session, _because_of_turn_before(request.stop_reason))
        else:
            self._begin_next_turn(session)

    def drop_stopped_from_running(self) -> None:
        """Remove from `running` the requests that `handle_stopped_request` has released."""
        self.running = [request for request in self.running if request.row >= 0]

    def _fail_session(self, session: Session, reason: str) -> None:
        """End a session that has no turn under way. Each turn that has not begun ends with an error."""
        self.outputs += [
            EngineCoreOutput(request_id, [], FinishReason.ERROR, reason)
            for request_id in self.sessions.end(session)
        ]

    def _free_request(self, request: Request) -> None:
        """Forget a finished request and release what it has. The caller updates the queues and `running`."""
        del self.requests[request.request_id]
        self.finished_req_ids.add(request.request_id)
        self.policy.end(request)
        if request.row >= 0:
            self._release(request)
        self.observer.request_finished(request)

    def _release(self, request: Request) -> None:
        """Release the row and the blocks. Computed blocks are published, except after an error."""
        failed = request.status is RequestStatus.FINISHED_ERROR
        self.kv_cache.free(request, 0 if failed else request.num_good_tokens)
        for constraint in self._constraints:
            constraint.release(request)
        self.free_rows.append(request.row)
        request.row = -1
        request.num_computed_tokens = 0

    # ------------------------------------------------------------------------------ admission and preemption

    def admit(self, request: Request, num_cached_tokens: int) -> None:
        """Give a row to `request`. The caller has taken it from its queue and given it its blocks."""
        request.row = self.free_rows.pop()
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_cached_tokens
        if request.num_cached_tokens < 0:  # hits after a preemption are not reported
            request.num_cached_tokens = num_cached_tokens
        insort(self.running, request)
        self.policy.begin(request)
        self.observer.request_admitted(request, num_cached_tokens)

    def preempt(self, victim: Request) -> None:
        """Release the row and the blocks of `victim`, the last of `running`.

        It waits again. After its next admission it computes again what is no longer cached.
        """
        last = self.running.pop()
        assert last is victim, "a victim is always the last of the running requests"
        self._release(victim)
        victim.status = RequestStatus.PREEMPTED
        victim.spec_token_ids = []
        victim.num_preemptions += 1
        self.waiting.prepend_request(victim)
        self.preempted_req_ids.add(victim.request_id)
        self.observer.request_preempted(victim)

    def preempt_all(self) -> None:
        """Preempt all running requests."""
        while self.running:
            self.preempt(self.running[-1])

    def pause(self, state: PauseState) -> None:
        """Set which requests may run: none (PAUSED_ALL), begun ones (PAUSED_NEW), or all (UNPAUSED)."""
        self.pause_state = state
        going_on = state is PauseState.UNPAUSED
        sources = [self.paused] if going_on else [self.waiting, self.skipped_waiting]
        moving = [each for queue in sources for each in queue if each.status is RequestStatus.WAITING]
        # These go before requests that arrived later, as skipped requests do.
        target = self.skipped_waiting if going_on else self.paused
        moving = sorted([*target, *moving])
        self._remove_waiting(moving)
        for request in moving:
            target.add_request(request)

    def has_begun_requests(self) -> bool:
        """Whether any request has begun and not ended. With PAUSED_NEW, False means that all are drained."""
        return bool(self.running) or any(
            request.status is RequestStatus.PREEMPTED for request in (*self.waiting, *self.skipped_waiting)
        )

    def _remove_waiting(self, requests: list[Request]) -> None:
        if requests:
            for request in requests:
                self.preparing.pop(request.request_id, None)
            for queue in (self.waiting, self.skipped_waiting, self.paused):
                queue.remove_requests(requests)

    def check(self, num_rows: int) -> None:
        """Verify every invariant between requests, queues, rows and blocks. Raises AssertionError."""
        waiting = [*self.waiting, *self.skipped_waiting, *self.paused, *self.preparing.values()]
        assert sorted([*self.running, *waiting]) == sorted(self.requests.values()), "a request is lost"
        assert self.running == sorted(self.running), "running is out of order"
        rows = [request.row for request in self.running]
        assert sorted(rows + self.free_rows) == list(range(num_rows)), "a row is lost or doubled"
        assert all(request.status is RequestStatus.RUNNING for request in self.running)
        assert all(request.row < 0 and request.num_computed_tokens == 0 for request in waiting)
        owners = self.kv_cache.get_owners()
        assert owners == {request.request_id for request in self.running}, "a block has the wrong owner"
        under_way = [session.turn for session in self.sessions if session.turn is not None]
        assert all(self.requests.get(turn.request_id) is turn for turn in under_way), "a turn is lost"
        self.sessions.check()


def _because_of_turn_before(error: object) -> str:
    return f"the turn before ended with an error: {error}"
