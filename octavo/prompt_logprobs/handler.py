"""The front-end half: limits the number of log-probabilities, and adds the text of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.errors import RequestError
from octavo.frontend.logprobs import TokenTexts
from octavo.frontend.tokenizer import Tokenizer
from octavo.types.outputs import PositionLogprobs
from octavo.types.params import ALL_LOGPROBS, SamplingParams
from octavo.types.protocols import RequestHandler
from octavo.types.sampling import TokenLogprobs

# Most log-probabilities of one request. Each takes about 100 bytes until it is delivered.
MAX_PROMPT_LOGPROBS = 2**22


class PromptLogprobsHandler(RequestHandler):
    """Checks requests against `MAX_PROMPT_LOGPROBS`."""

    def __init__(self, vocab_size: int, tokenizer: Tokenizer) -> None:
        self._vocab_size = vocab_size
        self._tokenizer = tokenizer

    def prepare(self, params: SamplingParams, prompt_token_ids: Sequence[int]) -> Any:
        asked = params.prompt_logprobs
        count = self._vocab_size if asked == ALL_LOGPROBS else asked or 0
        total = len(prompt_token_ids) * count
        if total > MAX_PROMPT_LOGPROBS:
            raise RequestError(
                f"prompt_logprobs is {asked}: for a prompt of {len(prompt_token_ids)} tokens that makes "
                f"{total} log-probabilities, and a request may ask for at most {MAX_PROMPT_LOGPROBS}",
                "prompt_logprobs",
            )
        return None

    def make_result(
        self, result: Sequence[TokenLogprobs], params: SamplingParams
    ) -> list[PositionLogprobs | None]:
        """Return one entry for each prompt token. The first is None, since no token precedes it."""
        texts = TokenTexts(self._tokenizer if params.detokenize else None)
        return [None, *map(texts.add, result)]
