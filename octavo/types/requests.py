"""The requests that the front end sends to the core."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.types.params import SamplingParams

DEFAULT_TENANT = ""


class MediaSpan(msgspec.Struct, frozen=True):
    """The position of the tokens of one image, sound or video in a prompt."""

    identifier: str  # equal exactly if the content is equal
    offset: int  # position of the first token in the prompt
    num_tokens: int

    def moved(self, distance: int) -> MediaSpan:
        """Return this span with `distance` more tokens before it."""
        return MediaSpan(self.identifier, self.offset + distance, self.num_tokens)


class EngineCoreRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One checked request, as the front end sends it to the core. Its prompt is token ids.

    A request with a `session_id` is a turn of that session. It waits until the earlier turns have ended, and
    its prompt is appended to the tokens that they have left.
    """

    request_id: str  # unique within the engine
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    eos_token_ids: frozenset[int] = frozenset()  # end generation, unless sampling_params.ignore_eos
    arrival_time: float  # time.time() when the front end received it
    priority: int = 0  # lower is more urgent; only under the priority policy
    tenant: str = DEFAULT_TENANT  # the account it runs for; the fair policy divides steps among tenants
    deadline_s: float | None = None  # seconds from arrival in the core until it must be complete
    session_id: str | None = None  # unique within the engine among sessions that have not ended
    continues_session: bool = False  # true for every turn but the first; rejected if the session is gone
    # True if it was sent before the end of an earlier turn was known. It is then rejected if the turn before
    # it was rejected.
    follows_unfinished: bool = False
    cache_salt: str | None = None  # only requests with the same salt share cached blocks
    adapter: str | None = None  # name and path of a LoRA adapter; blocks are shared only within one adapter
    media: tuple[MediaSpan, ...] = ()  # the parts of the prompt that are not text
    feature_data: dict[str, Any] = {}  # by feature: data from its front-end half, plain data
    num_encoder_tokens: int = 0  # encoder tokens whose KV cross attention keeps
