"""A feature that only tests have: it guesses tokens, some of them wrong, for the engine to verify."""

from __future__ import annotations

from collections.abc import Sequence

from octavo import LLM
from octavo.scheduler.budget import StepBudget
from octavo.scheduler.constraint import StatelessConstraint
from octavo.scheduler.request import Request
from octavo.types.batch import Batch
from octavo.types.protocols import Extension
from octavo.types.sampling import SamplerOutput
from octavo.types.steps import ModelRunnerOutput, NewRequestData


class Drafts(Extension):
    """Guesses what follows from texts that it knows: the next tokens. Now and then the last of them is wrong.

    The number of guesses changes from step to step, from none to `most`.
    """

    def __init__(self, texts: Sequence[Sequence[int]], most: int = 4) -> None:
        """`texts`: prompts with their answers."""
        self._texts = [list(text) for text in texts]
        self._most = most
        self._token_ids: dict[int, list[int]] = {}  # by row
        self.num_accepted = 0
        self.num_rejected = 0

    def admit(self, request: NewRequestData) -> None:
        self._token_ids[request.row] = list(request.token_ids)

    def after_sample(self, batch: Batch, sampled: SamplerOutput, output: ModelRunnerOutput) -> None:
        for index in batch.sampled_index.tolist():
            req_id = batch.req_ids[index]
            gained = output.sampled_token_ids[req_id]
            num_drafts = len(batch.draft_token_ids.get(index, []))
            self.num_accepted += len(gained) - 1
            self.num_rejected += num_drafts + 1 - len(gained)
            token_ids = self._token_ids[int(batch.rows[index])]
            token_ids += gained
            output.draft_token_ids[req_id] = self._guess(token_ids)

    def _guess(self, token_ids: list[int]) -> list[int]:
        start = len(token_ids)
        known = next((text for text in self._texts if text[:start] == token_ids), token_ids)
        guesses = known[start : start + start % (self._most + 1)]
        if guesses and start % 3 == 0:
            guesses[-1] = (guesses[-1] + 1) % 256
        return guesses


class OneStepAtATime(StatelessConstraint):
    """A request waits for the guesses that come with its last token."""

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        return 0 if request.num_output_placeholders else count


def install(llm: LLM, drafts: Drafts) -> None:
    """Have `llm` verify what `drafts` guesses."""
    core = llm.engine.client.core
    core.executor.runner.extensions = [*core.executor.runner.extensions, drafts]
    core.scheduler.constraints.append(OneStepAtATime())
