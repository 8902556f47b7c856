"""The requests that the front end sends to the core."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.types.params import SamplingParams

DEFAULT_TENANT = ""


class MediaSpan(msgspec.Struct, frozen=True):
    """The position in a prompt of the tokens of one image, sound or video."""

    identifier: str  # equal if and only if the content is equal
    offset: int  # position of its first token in the prompt
    num_tokens: int

    def moved(self, distance: int) -> MediaSpan:
        """This span moved by `distance` tokens."""
        return MediaSpan(self.identifier, self.offset + distance, self.num_tokens)


class EngineCoreRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request, checked and tokenized, as the front end sends it to the core.

    A request with a `session_id` is a turn of a session. It waits until the earlier turns have ended. Then
    its prompt is appended to the session's tokens.
    """

    request_id: str  # unique within the engine
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    eos_token_ids: frozenset[int] = frozenset()  # these end the answer, unless sampling_params.ignore_eos
    arrival_time: float  # time.time() when the front end received it
    priority: int = 0  # lower is more urgent; only under the priority policy
    tenant: str = DEFAULT_TENANT  # the account that it runs for; only under the fair policy
    deadline_s: float | None = None  # seconds from its arrival in the core until it must be complete
    session_id: str | None = None  # unique within the engine among sessions that have not ended
    continues_session: bool = False  # every turn but the first: rejected if the session no longer exists
    # It was sent before an earlier turn was known to have ended: rejected if the turn before it was rejected.
    follows_unfinished: bool = False
    cache_salt: str | None = None  # only requests with the same salt share cached blocks
    adapter: str | None = None  # name and path of a LoRA adapter: only requests of one adapter share blocks
    media: tuple[MediaSpan, ...] = ()  # the parts of the prompt that are not text
    feature_data: dict[str, Any] = {}  # by feature: what its front-end half prepared, plain data
    num_encoder_tokens: int = 0  # tokens of the encoder's input, for models with cross attention
