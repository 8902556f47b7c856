"""Control of logits by a request: `logit_bias`, `allowed_token_ids`, `bad_words` and `min_tokens`.

The front-end half turns words into token ids. The worker half restricts and biases the rows of logits.
"""

from __future__ import annotations

from octavo.features import EngineParts, Feature, FrontEndParts
from octavo.types.protocols import Extension, RequestHandler

NAME = "logits_control"


def _make_handler(parts: FrontEndParts) -> RequestHandler:
    from octavo.logits_control.handler import LogitsControlHandler

    return LogitsControlHandler(parts.tokenizer)


def _make_extension(parts: EngineParts) -> Extension:
    from octavo.logits_control.extension import LogitsControlExtension

    return LogitsControlExtension(parts.vocab_size)


FEATURE = Feature(make_handler=_make_handler, make_extension=_make_extension)
