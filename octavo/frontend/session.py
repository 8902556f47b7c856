"""`Session`: a text that a user and the model write in turns. Cached parts of it are not computed again."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from octavo.errors import RequestError
from octavo.frontend.input_processor import Prompt, Turn, final_only, holds_token_ids
from octavo.frontend.interrupts import deferred_interrupt
from octavo.frontend.llm_engine import LLMEngine
from octavo.frontend.output_collector import OutputCollector
from octavo.types.options import RequestOptions
from octavo.types.outputs import RequestOutput
from octavo.types.params import SamplingParams

_ENDED = "the session has ended; begin another"
_TAKEN = "another thread has taken the answer; let one thread at a time generate in a session"


class Session:
    """A conversation in turns. A turn appends a prompt to the session's text and generates an answer.

    Between turns a session holds no blocks. The next turn reuses the part of the text that is still in the
    prefix cache, and computes the rest again. An answer's last token (usually the end-of-sequence token) is
    no part of the text that the next turn continues.

    A session ends with `close`, with a turn that fails or misses its deadline, and with a step of the engine
    that is broken off (by a second Ctrl-C) while a turn is unfinished.

    >>> with llm.session() as session:
    ...     session.generate("The capital of France is")
    ...     session.generate(" And that of Italy is")
    """

    def __init__(self, session_id: str, engine: LLMEngine, options: RequestOptions) -> None:
        """`options` apply to every turn, except that each turn has its own deadline."""
        self.session_id = session_id
        self._engine = engine
        self._options = options
        self._turns: deque[OutputCollector] = deque()  # appended turns whose last output was not returned
        self._num_turns = 0
        self._has_begun = False  # whether a turn has run
        self._is_open = True
        weakref.finalize(self, engine.end_session_soon, session_id).atexit = False

    def append(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        deadline_s: float | None = None,
    ) -> None:
        """Add a turn, which begins as soon as the turn before it has ended.

        If the turn is not finished within `deadline_s` seconds, the session ends with an error. Raises
        RequestError if the session has ended, and for an invalid turn. The engine rejects a turn that is too
        long for the session, or whose deadline cannot be met: then `stream` raises the RequestError, the
        session stays as it was, and turns that were appended after the rejected one are rejected too.
        """
        self._append(prompt, SamplingParams() if sampling_params is None else sampling_params, deadline_s)

    def stream(self) -> Iterator[RequestOutput]:
        """The outputs of all turns appended so far, as they come. Each wait for an output runs the engine.

        Raises RequestError for a turn that was rejected; another `stream` gives the turns after it. Ctrl-C
        ends the wait after the current step. No output is lost: another `stream` continues. A second Ctrl-C
        takes effect at once (`deferred_interrupt`), and ends the session.
        """
        while self._turns:
            output = self._next_output()
            if output is not None:
                yield output

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        deadline_s: float | None = None,
    ) -> RequestOutput:
        """Append `prompt`, wait for its answer, and return the whole answer. Outputs of earlier turns that
        were not streamed are discarded.

        Ctrl-C ends the turn after the current step, and the session continues with the prompt and the answer
        so far. Earlier turns that have not begun are dropped. A second Ctrl-C ends the session, as in
        `stream`.

        Raises RequestError for a turn that cannot run, and if the session has ended or is closed during the
        call; KeyboardInterrupt after Ctrl-C. An answer that failed is returned, with the reason.
        """
        params = final_only(SamplingParams() if sampling_params is None else sampling_params)
        with deferred_interrupt() as was_interrupted:
            turn = self._append(prompt, params, deadline_s)
            while turn in self._turns and not turn.is_finished and not was_interrupted():
                self._step(turn)
        if was_interrupted():
            self._stop_turns()
            raise KeyboardInterrupt
        with self._engine.lock:
            if turn not in self._turns:
                raise RequestError(_TAKEN if self._is_open else _ENDED, "session")
            self._note_ends()
            while self._turns.popleft() is not turn:
                pass
            output = turn.get_nowait()
            assert output is not None, "a turn that has finished has an output"
            return output

    def close(self) -> None:
        """End the session and its unfinished turns. Outputs that were not streamed are discarded.

        May be called again, and from any thread. The call waits while another thread holds the engine's lock.
        """
        with self._engine.lock:
            self._is_open = False
            self._turns.clear()
            self._engine.end_session(self.session_id)

    def _append(self, prompt: Prompt, params: SamplingParams, deadline_s: float | None) -> OutputCollector:
        _require_one(prompt)
        options = msgspec.structs.replace(self._options, deadline_s=deadline_s)
        with self._engine.lock:
            self._note_ends()
            if not self._is_open:
                raise RequestError(_ENDED, "session")
            is_behind = not all(turn.is_finished for turn in self._turns)
            place = Turn(self.session_id, self._has_begun or is_behind, is_behind)
            request = self._engine.input_processor.process_inputs(prompt, params, options, place)
            turn = self._engine.add_processed(f"{self.session_id}-{self._num_turns}", request)
            self._num_turns += 1
            self._turns.append(turn)
            return turn

    def _note_ends(self) -> None:
        """Update `_has_begun` and `_is_open` from the turns that have finished."""
        for turn in self._turns:
            if turn.is_finished and not turn.is_rejected:
                self._has_begun = True
                self._is_open &= turn.finish_reason not in ("error", "abort")

    def _next_output(self) -> RequestOutput | None:
        """The next output of the first turn. If none waits, runs a step and returns None. Also returns None
        if another thread has taken the output. Raises the RequestError of a turn that was rejected.
        """
        with self._engine.lock:
            if not self._turns:
                return None
            turn = self._turns[0]
            if turn.is_finished:
                self._note_ends()
                self._turns.popleft()
            if turn.is_ready or turn.is_finished:
                return turn.get_nowait()
        with deferred_interrupt() as was_interrupted:
            self._step(turn)
        if was_interrupted():
            raise KeyboardInterrupt
        return None

    def _step(self, turn: OutputCollector) -> None:
        """Run a step of the engine, unless an output of `turn` waits already, from another thread's step."""
        try:
            with self._engine.lock:
                if not turn.is_ready:
                    self._engine.step()
        except KeyboardInterrupt:  # a second Ctrl-C
            self.close()
            raise

    def _stop_turns(self) -> None:
        with self._engine.lock:
            try:
                self._note_ends()
                unfinished = [turn.request_id for turn in self._turns if not turn.is_finished]
                self._engine.stop_requests(unfinished)
                self._has_begun |= bool(unfinished)
                self._turns.clear()
            except BaseException:  # a second Ctrl-C: it is not known which turns were stopped
                self.close()
                raise

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
