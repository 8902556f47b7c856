"""What the front end sends to the core."""

from __future__ import annotations

import msgspec

from octavo.types.params import SamplingParams


class MediaSpan(msgspec.Struct, frozen=True):
    """Where a prompt has placeholders for an image, a sound or the like."""

    identifier: str  # stands for the content
    offset: int  # of the first placeholder in the prompt
    num_tokens: int


class EngineCoreRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request, checked and in token ids, on its way from the front end to the core."""

    request_id: str  # unique within the engine
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    eos_token_ids: frozenset[int] = frozenset()  # end generation, unless sampling_params.ignore_eos
    arrival_time: float  # time.time() when the front end took it
    priority: int = 0  # lower is more urgent; only under the priority policy
    cache_salt: str | None = None  # only requests with the same salt share cached blocks
    adapter: str | None = None  # name and path of a LoRA adapter, as one key; None = the plain model
    media: tuple[MediaSpan, ...] = ()  # in the order of their offsets; no two overlap
    num_encoder_tokens: int = 0  # of the input that cross attention sees
