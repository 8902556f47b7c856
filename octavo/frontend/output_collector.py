"""`OutputCollector`: where the outputs of one request wait until its caller takes them.

Every request has its own collector, which any thread's step fills. It holds at most one output: a new delta
is merged with the one that waits, and a new cumulative output replaces it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from octavo.errors import RequestError
from octavo.types.outputs import CompletionOutput, RequestOutput
from octavo.types.params import RequestOutputKind


class OutputCollector:
    """Holds the new output of one request. It takes no lock: callers hold `LLMEngine.lock`."""

    def __init__(
        self,
        request_id: str,
        kind: RequestOutputKind,
        announce: Callable[[OutputCollector], object] = lambda collector: None,
    ) -> None:
        """`announce` is called when the empty collector receives an output or an error."""
        self.request_id = request_id
        self.is_finished = False  # whether the last output or an error was put
        self.finish_reason: str | None = None  # of the first answer in the last output
        self._is_delta = kind is RequestOutputKind.DELTA
        self._announce = announce
        self._output: RequestOutput | None = None
        self._error: RequestError | None = None

    @property
    def is_ready(self) -> bool:
        """Whether there is an output or an error to get."""
        return self._output is not None or self._error is not None

    @property
    def is_rejected(self) -> bool:
        """Whether the request ended with an error instead of an output: it never ran."""
        return self.is_finished and self.finish_reason is None

    def put(self, output: RequestOutput) -> None:
        """Add an output, the last one if it is `finished`."""
        if output.finished:
            self.is_finished = True
            self.finish_reason = output.outputs[0].finish_reason
        earlier, self._output = self._output, output
        if earlier is None:
            self._announce(self)
        elif self._is_delta:
            self._output = _merge(earlier, output)

    def put_error(self, error: RequestError) -> None:
        """End the request with an error, which `get_nowait` raises after the outputs before it."""
        self.is_finished = True
        self._error = error
        if self._output is None:
            self._announce(self)

    def get_nowait(self) -> RequestOutput | None:
        """Take the output that waits, or None if there is none.

        Raises the RequestError of a rejected request, once.
        """
        output, self._output = self._output, None
        if output is None and self._error is not None:
            error, self._error = self._error, None
            raise error
        return output


def _merge(earlier: RequestOutput, later: RequestOutput) -> RequestOutput:
    """Two consecutive deltas as one output."""
    answers = {answer.index: answer for answer in earlier.outputs}
    for answer in later.outputs:
        before = answers.get(answer.index)
        answers[answer.index] = answer if before is None else _append(before, answer)
    results = {**earlier.results, **later.results}
    return replace(later, outputs=[answers[index] for index in sorted(answers)], results=results)


def _append(before: CompletionOutput, delta: CompletionOutput) -> CompletionOutput:
    logprobs = delta.logprobs if before.logprobs is None else before.logprobs + (delta.logprobs or [])
    return replace(
        delta, text=before.text + delta.text, token_ids=before.token_ids + delta.token_ids, logprobs=logprobs
    )
