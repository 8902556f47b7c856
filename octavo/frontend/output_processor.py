"""`OutputProcessor` turns the core's outputs, which are token ids, into the user's outputs, which are text.

A user's request for n answers is n requests to the core. Only this module knows both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from octavo.errors import RequestError
from octavo.frontend.detokenizer import IncrementalDetokenizer
from octavo.frontend.input_processor import ProcessedInput
from octavo.frontend.logprobs import LogprobsProcessor
from octavo.frontend.output_collector import OutputCollector
from octavo.frontend.timings import RequestTimings
from octavo.frontend.tokenizer import Tokenizer
from octavo.logs import get_logger
from octavo.types.outputs import (
    CompletionOutput,
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    Rejection,
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
        self._last_token_time: float | None = None

    def update(self, output: EngineCoreOutput, now: float) -> bool:
        """Add the core's output of time `now`. Returns True if a stop string ended the answer and the core
        must still stop the request.
        """
        ends_on_token = output.finish_reason is FinishReason.STOP
        stop_string = self.detokenizer.update(output.new_token_ids, ends_on_token)
        # The answer ends with the token that completed a stop string.
        num_new = self.detokenizer.num_output_tokens - len(self.token_ids)
        self.token_ids += output.new_token_ids[:num_new]
        if num_new:
            self.user_request.timings.take_tokens(num_new, now, self._last_token_time)
            self._last_token_time = now
        if output.new_logprobs:
            self.logprobs.update(output.new_logprobs[:num_new])
        for feature, result in (output.results or {}).items():
            self.user_request.add_result(feature, result)
        if stop_string is not None:
            self.finish_reason, self.stop_reason = FinishReason.STOP, stop_string
            return output.finish_reason is None
        self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
        return False

    def fail(self, reason: str) -> None:
        """End the answer with an error."""
        self.finish_reason, self.stop_reason = FinishReason.ERROR, reason

    def is_due(self) -> bool:
        """Whether the new tokens must be sent now. If not, they are sent together with later tokens."""
        if self.finish_reason is not None or self.num_tokens_sent == 0:
            return True
        interval = self.user_request.input.params.stream_interval or 1
        return len(self.token_ids) - self.num_tokens_sent >= interval

    def make_output(self, kind: RequestOutputKind) -> CompletionOutput:
        """The answer so far, or for DELTA only its new part."""
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
    """A request as the user made it, and its progress."""

    def __init__(
        self,
        request: ProcessedInput,
        timings: RequestTimings,
        collector: OutputCollector,
        handlers: Mapping[str, RequestHandler],
    ) -> None:
        """`handlers`: the front-end halves of features, by feature."""
        self.input = request
        self.timings = timings
        self.collector = collector
        self.answers: list[Answer] = []
        self.num_cached_tokens = 0
        self._handlers = handlers
        # By feature. With DELTA outputs, only the results that have not been sent.
        self._results: dict[str, Any] = {}

    def add_result(self, feature: str, result: Any) -> None:
        """Add the result that a feature's worker half sent."""
        self._results[feature] = self._handlers[feature].make_result(result, self.input.params)

    @property
    def session_id(self) -> str | None:
        """The session that the request is a turn of, or None."""
        return self.input.turn.session_id if self.input.turn is not None else None

    @property
    def finished(self) -> bool:
        """Whether every answer is complete."""
        return all(answer.finish_reason is not None for answer in self.answers)

    def put_output(self, changed: list[Answer], now: float) -> None:
        """Put an output with the answers in `changed` into the collector, if one is due at time `now`."""
        output = self._make_output(changed, now)
        if output is not None:
            self.collector.put(output)

    def _make_output(self, changed: list[Answer], now: float) -> RequestOutput | None:
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
            request_id=self.collector.request_id,
            prompt=self.input.prompt,
            prompt_token_ids=self.input.prompt_token_ids,
            outputs=[answer.make_output(kind) for answer in due],
            finished=finished,
            metrics=self.timings.make_metrics(now if finished else None),
            num_cached_tokens=self.num_cached_tokens,
            seed=self.input.params.seed,
            results=results,
        )


class CoreMessages(NamedTuple):
    """Requests and sessions that the core must end, after its outputs were processed."""

    request_ids_to_stop: list[str]  # requests that a stop string ended
    request_ids_to_abort: list[str]  # requests whose answers the user no longer needs
    sessions_to_end: dict[str, str]  # by session id: the error with which the front end ended a turn


class OutputProcessor:
    """Keeps every unfinished request, and turns its tokens into text as they come.

    `clock` is the core's clock, which also stamps each `EngineCoreEvent`.
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
        self._answers: dict[str, Answer] = {}  # by the core's request id
        self._num_added = 0

    def add_request(
        self, request: ProcessedInput, arrival_time: float, collector: OutputCollector
    ) -> list[str]:
        """Keep a request, whose outputs go to `collector`. Returns n ids for the core's requests, one for
        each answer. No id is ever used twice.

        Several unfinished requests may share one `collector.request_id`.
        """
        self._num_added += 1
        timings = RequestTimings(arrival_time, self._clock())
        user_request = UserRequest(request, timings, collector, self._handlers)
        for index in range(request.params.n):
            core_id = f"{collector.request_id}.{self._num_added}.{index}"
            answer = Answer(core_id, index, user_request, self.tokenizer)
            user_request.answers.append(answer)
            self._answers[core_id] = answer
        return [answer.request_id for answer in user_request.answers]

    def forget_requests(self, request_ids: Iterable[str]) -> list[str]:
        """Forget the unfinished requests with the user's `request_ids`. Returns the core's ids of their
        answers, whose outputs are ignored from now on.
        """
        ids = set(request_ids)
        return self._forget(lambda user_request: user_request.collector.request_id in ids)

    def forget_session(self, session_id: str) -> None:
        """Forget all unfinished turns of a session."""
        self._forget(lambda user_request: user_request.session_id == session_id)

    def fail_all(self, reason: str) -> list[str]:
        """End every unfinished request with an error. Returns the core's ids of their answers."""
        answers, self._answers = self._answers, {}
        failed: dict[UserRequest, list[Answer]] = {}
        for answer in answers.values():
            answer.fail(reason)
            failed.setdefault(answer.user_request, []).append(answer)
        for user_request, its_answers in failed.items():
            user_request.put_output(its_answers, self._clock())
        return list(answers)

    def has_unfinished_requests(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._answers)

    def process_outputs(self, outputs: EngineCoreOutputs) -> CoreMessages:
        """Put the outputs of one step into their collectors. Outputs of forgotten requests are ignored."""
        now = self._clock()
        step_time = now if outputs.timestamp is None else outputs.timestamp
        changed: dict[UserRequest, list[Answer]] = {}
        messages = CoreMessages([], [], {})
        for request_id, events in outputs.events.items():
            if (answer := self._answers.get(request_id)) is not None:
                for event in events:
                    answer.user_request.timings.take_event(event)
        for output in outputs.outputs:
            answer = self._answers.get(output.request_id)
            if answer is None:
                continue
            if output.rejection is not None:
                self._reject(answer.user_request, output.rejection, messages)
                changed.pop(answer.user_request, None)
                continue
            self._update(answer, output, step_time, messages)
            if answer.finish_reason is not None:
                del self._answers[answer.request_id]
            if answer.index == 0:  # the other answers share the computation of the prompt with the first
                answer.user_request.num_cached_tokens = output.num_cached_tokens
            changed.setdefault(answer.user_request, []).append(answer)
        for user_request, answers in changed.items():
            user_request.put_output(answers, now)
        return messages

    def _update(self, answer: Answer, output: EngineCoreOutput, now: float, messages: CoreMessages) -> None:
        """Call `answer.update`. If it fails, this request alone ends with an error."""
        try:
            if answer.update(output, now):
                messages.request_ids_to_stop.append(answer.request_id)
        except Exception as error:  # the front end's one boundary handler
            logger.exception("the output of request %s could not be processed", answer.request_id)
            reason = f"{type(error).__name__}: {error}"
            answer.fail(reason)
            if (session_id := answer.user_request.session_id) is not None:
                messages.sessions_to_end[session_id] = reason
            elif output.finish_reason is None:
                messages.request_ids_to_abort.append(answer.request_id)

    def _reject(self, user_request: UserRequest, rejection: Rejection, messages: CoreMessages) -> None:
        """End a request of which the core rejected one answer, and abort its other answers."""
        core_ids = [answer.request_id for answer in user_request.answers]
        messages.request_ids_to_abort.extend(core_ids)
        for core_id in core_ids:
            self._answers.pop(core_id, None)
        user_request.collector.put_error(RequestError(rejection.message, rejection.param))

    def _forget(self, is_meant: Callable[[UserRequest], bool]) -> list[str]:
        ids = [core_id for core_id, answer in self._answers.items() if is_meant(answer.user_request)]
        for core_id in ids:
            del self._answers[core_id]
        return ids
