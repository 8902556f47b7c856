"""What the front end sends to the core."""

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
        """The same in a prompt that has so many tokens more before it."""
        return MediaSpan(self.identifier, self.offset + distance, self.num_tokens)


class EngineCoreRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request, checked and in token ids, on its way from the front end to the core.

    One with the id of a session (a resumable request that has not ended) is the session's next turn: its
    prompt is appended to what the session holds. If it is not resumable itself it ends the session instead,
    after the turns before it, and brings nothing.
    """

    request_id: str  # unique within the engine
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    eos_token_ids: frozenset[int] = frozenset()  # end generation, unless sampling_params.ignore_eos
    arrival_time: float  # time.time() when the front end took it
    priority: int = 0  # lower is more urgent; only under the priority policy
    tenant: str = DEFAULT_TENANT  # who shares with whom under the fair policy
    deadline_s: float | None = None  # seconds after its arrival until which it must be finished
    resumable: bool = False  # a session: it can go on with another turn when this one has ended
    goes_on: bool = False  # a turn after the first: nothing without those before it
    cache_salt: str | None = None  # only requests with the same salt share cached blocks
    adapter: str | None = None  # name and path of a LoRA adapter: only requests of one adapter share blocks
    media: tuple[MediaSpan, ...] = ()  # what of the prompt is not text
    feature_data: dict[str, Any] = {}  # by feature: what its front-end half prepared, plain data
    num_encoder_tokens: int = 0  # that cross attention keeps, for models with an encoder
