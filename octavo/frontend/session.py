"""`Session`: a text that a user and the model write in turns, without computing any of it twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

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
    rule) is no part of the context. With a failure, an abort or `close` a session ends.

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

    def append(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> None:
        """Add a turn, which begins as soon as the one before it has ended. Raises RequestError for one that
        cannot run, or when the session has ended.
        """
        if not self._is_open:
            raise RequestError("the session has ended; begin another", "session")
        params = SamplingParams() if sampling_params is None else sampling_params
        self._engine.add_request(self.request_id, prompt, params, self._options)
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

    def generate(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> RequestOutput:
        """One turn: append `prompt`, and wait for the answer to it, which is given out whole."""
        params = SamplingParams() if sampling_params is None else sampling_params
        self.append(prompt, final_only(params))
        return deque(self.stream(), maxlen=1).pop()

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

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
