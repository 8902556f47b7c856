"""The requests that the front end sends to the core."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.types.params import SamplingParams

DEFAULT_TENANT = ""


class MediaSpan(msgspec.Struct, frozen=True):
    """Where in a prompt the tokens of one image, sound or video lie."""

    identifier: str  # equal for equal content, and only for it
    offset: int  # of its first token in the prompt
    num_tokens: int

    def moved(self, distance: int) -> MediaSpan:
        """The same span where `distance` more tokens precede it."""
        return MediaSpan(self.identifier, self.offset + distance, self.num_tokens)


class EngineCoreRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request, checked and in token ids, on its way from the front end to the core.

    With a `session_id` it is a turn of a session: its prompt is appended to what the turns before have left.
    It waits until they have ended.
    """

    request_id: str  # unique within the engine
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    eos_token_ids: frozenset[int] = frozenset()  # end generation, unless sampling_params.ignore_eos
    arrival_time: float  # time.time() when the front end received it
    priority: int = 0  # lower is more urgent; only under the priority policy
    tenant: str = DEFAULT_TENANT  # the account it runs on; requests of one tenant share under the fair policy
    deadline_s: float | None = None  # it must be finished within so many seconds of its arrival in the core
    session_id: str | None = None  # unique within the engine among sessions that have not ended
    continues_session: bool = False  # every turn but the first: rejected if the session no longer exists
    # It was sent before the end of an earlier turn was known: rejected if the turn before it was.
    follows_unfinished: bool = False
    cache_salt: str | None = None  # only requests with the same salt share cached blocks
    adapter: str | None = None  # name and path of a LoRA adapter: only requests of one adapter share blocks
    media: tuple[MediaSpan, ...] = ()  # the parts of the prompt that are not text
    feature_data: dict[str, Any] = {}  # by feature: what its front-end half prepared, plain data
    num_encoder_tokens: int = 0  # that cross attention keeps, for models with an encoder
