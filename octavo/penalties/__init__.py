"""Penalties for tokens of a request: `presence_penalty`, `frequency_penalty` and `repetition_penalty`.

The feature has only a worker half, which counts tokens by row.
"""

from __future__ import annotations

from octavo.features import EngineParts, Feature
from octavo.types.protocols import Extension


def _make_extension(parts: EngineParts) -> Extension:
    from octavo.penalties.extension import PenaltiesExtension

    return PenaltiesExtension(parts.num_rows, parts.max_model_len, parts.vocab_size)


FEATURE = Feature(make_extension=_make_extension)
