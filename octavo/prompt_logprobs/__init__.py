"""Log-probabilities of prompt tokens (`SamplingParams.prompt_logprobs`).

The worker half gathers them from the hidden states of the prompt. The front-end half limits their number and
adds the text of the tokens. A request with prompt logprobs does not read the prefix cache: see
`SamplingParams.reads_prefix_cache`.
"""

from __future__ import annotations

from octavo.features import EngineParts, Feature, FrontEndParts
from octavo.types.protocols import Extension, RequestHandler

NAME = "prompt_logprobs"


def _make_handler(parts: FrontEndParts) -> RequestHandler:
    from octavo.prompt_logprobs.handler import PromptLogprobsHandler

    return PromptLogprobsHandler(parts.info.vocab_size, parts.tokenizer)


def _make_extension(parts: EngineParts) -> Extension:
    from octavo.prompt_logprobs.extension import PromptLogprobsExtension

    return PromptLogprobsExtension(parts.backend, parts.vocab_size)


FEATURE = Feature(make_handler=_make_handler, make_extension=_make_extension)
