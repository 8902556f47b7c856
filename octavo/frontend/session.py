"""`Session`: a text that a user and the model write in turns, without computing any of it twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from octavo.errors import RequestError
from octavo.frontend.input_processor import Prompt, final_only, holds_token_ids
from octavo.frontend.interrupts import deferred_interrupt
from octavo.frontend.llm_engine import LLMEngine
from octavo.types.options import RequestOptions
from octavo.types.outputs import RequestOutput
from octavo.types.params import SamplingParams

_ENDED = "the session has ended; begin another"
_TAKEN = "another thread has taken the answer; let one thread at a time generate in a session"


class Session:
    """Holds all that was said so far. A turn appends a prompt and generates an answer after it.

    Between turns a session holds no memory that others want: what of its context is still in the prefix cache
    by its next turn is reused, the rest is computed again. An answer's last token (an end of sequence, as a
    rule) is no part of the context. With a failure, a missed deadline or `close` a session ends. So does
    every session that waits for an answer when a step is broken off (by a second Ctrl-C): what the step said
    is lost.

    >>> with llm.session() as session:
    ...     session.generate("The capital of France is")
    ...     session.generate(" And that of Italy is")
    """

    def __init__(
        self, request_id: str, engine: LLMEngine, step: Callable[[], object], options: RequestOptions
    ) -> None:
        """`step` runs a step of the engine and gives each session its outputs (`take`)."""
        self.request_id = request_id
        self._engine = engine
        self._step = step
        self._options = options
        self._outputs: deque[RequestOutput] = deque()  # not given out yet
        self._num_turns_awaited = 0
        self._is_open = True

    def append(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        deadline_s: float | None = None,
    ) -> None:
        """Add a turn, which begins as soon as the one before it has ended. Raises RequestError for one that
        cannot run, or when the session has ended.

        With `deadline_s` the turn must be finished within so many seconds, or the session ends with an error.
        """
        _require_one(prompt)
        params = SamplingParams() if sampling_params is None else sampling_params
        options = msgspec.structs.replace(self._options, deadline_s=deadline_s)
        with self._engine.lock:
            if not self._is_open:
                raise RequestError(_ENDED, "session")
            self._engine.add_request(self.request_id, prompt, params, options)
            self._num_turns_awaited += 1

    def stream(self) -> Iterator[RequestOutput]:
        """The outputs of all turns appended so far, as they come. The engine runs while one is waited for.

        Ctrl-C ends the wait after the current step. The turns are not lost: another `stream` goes on. (A
        second Ctrl-C is not held back, see `deferred_interrupt`, and ends the session.)
        """
        while (output := self._next_output()) is not None:
            yield output

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        deadline_s: float | None = None,
    ) -> RequestOutput:
        """One turn: append `prompt`, and wait for the answer to it, which is given out whole. What turns
        appended before have said and was not streamed is discarded.

        Ctrl-C ends the turn after the current step, and the session goes on with what there is by then:
        prompt and answer so far. Turns appended before and not begun are dropped. (A second Ctrl-C ends the
        session, as in `stream`.)

        Raises RequestError for a turn that cannot run, and for a session that has ended or is closed
        meanwhile; KeyboardInterrupt after Ctrl-C. An answer that failed is given out, with the reason.
        """
        params = SamplingParams() if sampling_params is None else sampling_params
        with deferred_interrupt() as was_interrupted:
            self.append(prompt, final_only(params), deadline_s=deadline_s)
            while self._num_turns_awaited and not was_interrupted():
                self._step()
        if was_interrupted():
            self._stop_turns()
            raise KeyboardInterrupt
        with self._engine.lock:
            if not self._outputs:
                raise RequestError(_TAKEN if self._is_open else _ENDED, "session")
            output = self._outputs.pop()
            self._outputs.clear()
            return output

    def close(self) -> None:
        """End the session, and the turn that is under way. What was not streamed is discarded.

        May be called again, and from any thread; it waits for who holds the engine (`LLMEngine.lock`).
        """
        with self._engine.lock:
            self._is_open = False
            self._forget_turns()
            self._engine.abort_requests(self.request_id)

    def take(self, output: RequestOutput) -> None:
        """An output of the session's."""
        self._outputs.append(output)
        if output.finished:
            self._num_turns_awaited -= 1
            if output.outputs[0].finish_reason in ("error", "abort"):
                self._is_open = False

    def take_failure(self) -> None:
        """A step was broken off, and what it said is lost: the session ends, if it waits for an answer."""
        if self._num_turns_awaited:
            self.close()

    def _next_output(self) -> RequestOutput | None:
        """The next output, which is waited for; None when there is none to come."""
        while self._num_turns_awaited and not self._outputs:
            with deferred_interrupt() as was_interrupted:
                self._step()
            if was_interrupted():
                raise KeyboardInterrupt
        with self._engine.lock:
            return self._outputs.popleft() if self._outputs else None

    def _stop_turns(self) -> None:
        with self._engine.lock:
            try:
                self._engine.stop_turns(self.request_id)
                self._forget_turns()
            except BaseException:  # a second Ctrl-C: nobody knows which turns are left
                self.close()
                raise

    def _forget_turns(self) -> None:
        self._num_turns_awaited = 0
        self._outputs.clear()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _require_one(prompt: Any) -> None:
    """Raise RequestError for a list of prompts."""
    is_list = isinstance(prompt, Sequence) and not isinstance(prompt, str)
    if is_list and not holds_token_ids(prompt):
        raise RequestError(
            f"prompt is {prompt!r:.80}; a session takes one prompt a turn, a text or a list of token ids",
            "prompt",
        )
