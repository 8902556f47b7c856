"""`Session`: a text that a user and the model write in turns, without computing any of it twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from numbers import Number
from typing import Any

import msgspec
import numpy as np

from octavo.errors import RequestError
from octavo.frontend.input_processor import Prompt, final_only
from octavo.frontend.interrupts import deferred_interrupt
from octavo.frontend.llm_engine import LLMEngine
from octavo.types.options import RequestOptions
from octavo.types.outputs import RequestOutput
from octavo.types.params import SamplingParams


class Session:
    """Holds all that was said so far. A turn appends a prompt and generates an answer after it.

    Between turns a session holds no memory that others want: what of its context is still in the prefix cache
    by its next turn is reused, the rest is computed again. An answer's last token (an end of sequence, as a
    rule) is no part of the context. With a failure, a missed deadline or `close` a session ends.

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
        if not self._is_open:
            raise RequestError("the session has ended; begin another", "session")
        _require_one(prompt)
        params = SamplingParams() if sampling_params is None else sampling_params
        options = msgspec.structs.replace(self._options, deadline_s=deadline_s)
        self._engine.add_request(self.request_id, prompt, params, options)
        self._num_turns_awaited += 1

    def stream(self) -> Iterator[RequestOutput]:
        """The outputs of all turns appended so far, as they come. The engine runs while one is waited for.

        Ctrl-C ends the wait after the current step. The turns are not lost: another `stream` goes on.
        """
        while self._outputs or self._num_turns_awaited:
            while not self._outputs:
                with deferred_interrupt() as was_interrupted:
                    self._step()
                if was_interrupted():
                    raise KeyboardInterrupt
            yield self._outputs.popleft()

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        deadline_s: float | None = None,
    ) -> RequestOutput:
        """One turn: append `prompt`, and wait for the answer to it, which is given out whole.

        Ctrl-C ends the turn after the current step, and the session goes on with what there is by then:
        prompt and answer so far. Turns appended before and not begun are dropped. (A second Ctrl-C does not
        wait for the step, and ends the session.)
        """
        params = SamplingParams() if sampling_params is None else sampling_params
        with deferred_interrupt() as was_interrupted:
            self.append(prompt, final_only(params), deadline_s=deadline_s)
            while self._num_turns_awaited:
                self._step()
                if was_interrupted():
                    self._stop_turns()
                    raise KeyboardInterrupt
        output = self._outputs.pop()
        self._outputs.clear()
        return output

    def close(self) -> None:
        """End the session, and the turn that is under way."""
        if self._is_open:
            self._is_open = False
            self._num_turns_awaited = 0
            self._engine.abort_requests(self.request_id)

    def take(self, output: RequestOutput) -> None:
        """An output of the session's."""
        self._outputs.append(output)
        if output.finished:
            self._num_turns_awaited -= 1
            if output.outputs[0].finish_reason in ("error", "abort"):
                self._is_open = False

    def _stop_turns(self) -> None:
        with self._engine.lock:
            self._engine.stop_turns(self.request_id)
            self._num_turns_awaited = 0
            self._outputs.clear()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _require_one(prompt: Any) -> None:
    """Raise RequestError for a list of prompts."""
    is_list = isinstance(prompt, Sequence) and not isinstance(prompt, str)
    if is_list and prompt and not isinstance(prompt[0], (Number, np.generic)):
        raise RequestError(
            f"prompt is a list that begins with {prompt[0]!r:.80}; a session takes one prompt a turn, "
            "a text or a list of token ids",
            "prompt",
        )
