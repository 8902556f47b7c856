"""`OutputProcessor`: from the core's news, in token ids, to the user's outputs, in text.

A user's request may be several requests to the core (n answers to one prompt): here is the only place that
knows both.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from octavo.frontend.detokenizer import IncrementalDetokenizer
from octavo.frontend.input_processor import ProcessedInput
from octavo.frontend.logprobs import LogprobsProcessor
from octavo.frontend.timings import RequestTimings
from octavo.frontend.tokenizer import Tokenizer
from octavo.logs import get_logger
from octavo.types.outputs import (
    CompletionOutput,
    EngineCoreEvent,
    EngineCoreEventType,
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    RequestOutput,
)
from octavo.types.params import RequestOutputKind
from octavo.types.protocols import RequestHandler

logger = get_logger(__name__)


class Answer:
    """One of a request's n answers while it is being generated: one request to the core."""

    def __init__(self, request_id: str, index: int, user_request: UserRequest, tokenizer: Tokenizer) -> None:
        params = user_request.input.params
        self.request_id = request_id
        self.index = index
        self.user_request = user_request
        self.detokenizer = IncrementalDetokenizer(tokenizer, params, user_request.input.prompt_token_ids)
        self.logprobs = LogprobsProcessor(tokenizer if params.detokenize else None)
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.num_tokens_sent = 0
        self.is_queued = False  # in the core
        self._last_token_time: float | None = None

    def take_events(self, events: Sequence[EngineCoreEvent]) -> Sequence[EngineCoreEvent]:
        """Take in what happened to it in the core. Returns what came after: a session's next turn."""
        for index, event in enumerate(events):
            if event.type is EngineCoreEventType.QUEUED:
                if self.is_queued:
                    return events[index:]
                self.is_queued = True
            self.user_request.timings.take_event(event)
        return ()

    def update(self, output: EngineCoreOutput, now: float) -> bool:
        """Take in the core's news of `now`. Returns whether a stop string ended the answer unknown to it."""
        ends_on_token = output.finish_reason is FinishReason.STOP
        stop_string = self.detokenizer.update(output.new_token_ids, ends_on_token)
        # Tokens after the one that completed a stop string are no part of the answer.
        num_new = self.detokenizer.num_output_tokens - len(self.token_ids)
        self.token_ids += output.new_token_ids[:num_new]
        if num_new:
            self.user_request.timings.take_tokens(num_new, now, self._last_token_time)
            self._last_token_time = now
        if output.new_logprobs:
            self.logprobs.update(output.new_logprobs[:num_new])
        for feature, result in output.results.items():
            self.user_request.add_result(feature, result)
        if stop_string is not None:
            self.finish_reason, self.stop_reason = FinishReason.STOP, stop_string
            return output.finish_reason is None
        self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
        return False

    def is_due(self) -> bool:
        """Whether the user is to hear of the latest news now, or with later news."""
        if self.finish_reason is not None or self.num_tokens_sent == 0:
            return True
        interval = self.user_request.input.params.stream_interval or 1
        return len(self.token_ids) - self.num_tokens_sent >= interval

    def make_output(self, kind: RequestOutputKind) -> CompletionOutput:
        """The answer so far, or for DELTA what is new in it."""
        delta = kind is RequestOutputKind.DELTA
        start = self.num_tokens_sent if delta else 0
        self.num_tokens_sent = len(self.token_ids)
        finished = self.finish_reason is not None
        wants_logprobs = self.user_request.input.params.logprobs is not None
        return CompletionOutput(
            index=self.index,
            text=self.detokenizer.get_next_output_text(finished, delta),
            token_ids=self.token_ids[start:],
            cumulative_logprob=self.logprobs.cumulative_logprob if wants_logprobs else None,
            logprobs=self.logprobs.logprobs[start:] if wants_logprobs else None,
            finish_reason=self.finish_reason.value if self.finish_reason else None,
            stop_reason=self.stop_reason,
        )


class UserRequest:
    """What the user asked for, and how far it is."""

    def __init__(
        self,
        request_id: str,
        request: ProcessedInput,
        timings: RequestTimings,
        handlers: Mapping[str, RequestHandler],
    ) -> None:
        """`handlers`: the front-end halves of features, by feature."""
        self.request_id = request_id
        self.input = request
        self.timings = timings
        self.answers: list[Answer] = []
        self.num_cached_tokens = 0
        self._handlers = handlers
        self._results: dict[str, Any] = {}  # of features; those of DELTA outputs only until they are sent

    def add_result(self, feature: str, result: Any) -> None:
        """Take in what a feature's worker half sent."""
        self._results[feature] = self._handlers[feature].make_result(result, self.input.params)

    @property
    def finished(self) -> bool:
        """Whether every answer is complete."""
        return all(answer.finish_reason is not None for answer in self.answers)

    def make_output(self, changed: list[Answer], now: float) -> RequestOutput | None:
        """What the user is to hear after news, at `now`, of the `changed` answers; None = nothing yet."""
        finished = self.finished
        kind = self.input.params.output_kind
        if kind is RequestOutputKind.FINAL_ONLY:
            changed = self.answers if finished else []
        due = [answer for answer in changed if answer.is_due()]
        if not due:
            return None
        results = self._results
        if kind is RequestOutputKind.DELTA:
            self._results = {}
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.input.prompt,
            prompt_token_ids=self.input.prompt_token_ids,
            outputs=[answer.make_output(kind) for answer in due],
            finished=finished,
            metrics=self.timings.make_metrics(now if finished else None),
            num_cached_tokens=self.num_cached_tokens,
            seed=self.input.params.seed,
            results=results,
        )


class ProcessedOutputs(NamedTuple):
    """What comes of one step's news."""

    request_outputs: list[RequestOutput]
    # To the core, which does not know:
    request_ids_to_stop: list[str]  # a stop string has ended them (of a session, the turn)
    request_ids_to_abort: list[str]  # their tokens could not be turned into text


class OutputProcessor:
    """Remembers every request under way, and turns tokens into text as they come.

    `clock` is the core's (`EngineCoreEvent`).
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        handlers: Mapping[str, RequestHandler] = MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tokenizer = tokenizer
        self._handlers = handlers  # the front-end halves of features, by feature
        self._clock = clock
        # By the core's request id. A session has one for each turn, in the order they will be answered.
        self._answers: dict[str, deque[Answer]] = {}
        self._sessions: dict[str, str] = {}  # the core's request id by the user's
        self._num_added = 0

    def add_request(self, request_id: str, request: ProcessedInput, arrival_time: float) -> list[str]:
        """Remember a request. Returns the ids, unique for ever, under which the core is to generate its n
        answers.

        The same `request_id` may be under way more than once: outputs carry it, nothing is looked up by it
        but aborts and sessions, whose turns have one id in the core.
        """
        self._num_added += 1
        user_request = UserRequest(
            request_id, request, RequestTimings(arrival_time, self._clock()), self._handlers
        )
        for index in range(request.params.n):
            core_id = f"{request_id}.{self._num_added}.{index}"
            if request.options.resumable:
                core_id = self._sessions.setdefault(request_id, core_id)
            answer = Answer(core_id, index, user_request, self.tokenizer)
            user_request.answers.append(answer)
            self._answers.setdefault(core_id, deque()).append(answer)
        return [answer.request_id for answer in user_request.answers]

    def has_session(self, request_id: str) -> bool:
        """Whether `request_id` names a session that has not ended."""
        return request_id in self._sessions

    def abort_requests(self, request_ids: Iterable[str]) -> list[str]:
        """Forget all that is under way under the users' `request_ids`, and their sessions. Returns the core's
        ids of it.
        """
        users_ids = set(request_ids)
        ids = {id for id, answers in self._answers.items() if answers[0].user_request.request_id in users_ids}
        ids |= {self._sessions.pop(users_id) for users_id in users_ids & self._sessions.keys()}
        for core_id in ids:  # news of them are passed over
            self._answers.pop(core_id, None)
        return list(ids)

    def forget_turns(self, request_id: str) -> str | None:
        """Forget a session's turns that are under way or to come, but not the session. Returns the core's id
        of it; None where there is none.
        """
        core_id = self._sessions.get(request_id)
        if core_id is not None:
            self._answers.pop(core_id, None)
        return core_id

    def take_back(self, request_id: str, core_ids: Iterable[str], begun: bool) -> None:
        """The core has refused what was added last: forget it, and the session if it is `begun` with it."""
        for core_id in core_ids:
            self._answers[core_id].pop()
            if not self._answers[core_id]:
                del self._answers[core_id]
        if begun:
            self._sessions.pop(request_id, None)

    def has_unfinished_requests(self) -> bool:
        """Whether anything is under way."""
        return bool(self._answers)

    def process_outputs(self, outputs: EngineCoreOutputs) -> ProcessedOutputs:
        """Turn one step's news into outputs. News of requests that were aborted meanwhile are passed over."""
        now = self._clock()
        step_time = now if outputs.timestamp is None else outputs.timestamp
        changed: dict[UserRequest, list[Answer]] = {}
        to_stop, to_abort = [], []
        for request_id, events in outputs.events.items():
            rest: Sequence[EngineCoreEvent] = events
            for answer in self._answers.get(request_id, ()):  # what is left is the next turn's
                rest = answer.take_events(rest)
        for output in outputs.outputs:
            answers = self._answers.get(output.request_id)
            if answers is None:
                continue
            answer = answers[0]
            ended = [answer]
            if self._update(answer, output, step_time):
                to_stop.append(answer.request_id)
            elif answer.finish_reason is FinishReason.ERROR is not output.finish_reason:
                to_abort.append(answer.request_id)
                ended += self._fail_turns(answers)
            if answer.finish_reason is not None:
                self._drop_first(answers)
            if answer.index == 0:  # later ones find the prompt that the first has computed
                answer.user_request.num_cached_tokens = output.num_cached_tokens
            for each in ended:
                changed.setdefault(each.user_request, []).append(each)
        made = [user_request.make_output(answers, now) for user_request, answers in changed.items()]
        return ProcessedOutputs([output for output in made if output is not None], to_stop, to_abort)

    def _drop_first(self, answers: deque[Answer]) -> None:
        """An answer is complete."""
        answer = answers.popleft()
        if not answers:
            del self._answers[answer.request_id]
        if answer.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
            self._sessions.pop(answer.user_request.request_id, None)

    def _fail_turns(self, answers: deque[Answer]) -> list[Answer]:
        """The first of a session's turns has failed: those to come do, too. Returns them."""
        reason = f"the turn before ended with an error: {answers[0].stop_reason}"
        failed = [answers.pop() for _ in range(len(answers) - 1)][::-1]
        for answer in failed:
            answer.finish_reason, answer.stop_reason = FinishReason.ERROR, reason
        return failed

    def _update(self, answer: Answer, output: EngineCoreOutput, now: float) -> bool:
        """`answer.update`, where a failure ends this one request with an error and harms no other."""
        try:
            return answer.update(output, now)
        except Exception as error:  # the front end's one boundary handler
            logger.exception("the output of request %s could not be processed", answer.request_id)
            answer.finish_reason, answer.stop_reason = FinishReason.ERROR, f"{type(error).__name__}: {error}"
            return False
