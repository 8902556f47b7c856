"""Changes to logits before tokens are chosen: masks of allowed tokens, biases, penalties.

Each function changes the logits [L, V] float32 of a whole step, in float32. A logit of -inf stays -inf, so
the order matters only between bias and penalties: penalties apply to the logit with its bias.
"""

from __future__ import annotations

import numpy as np

from octavo.types.sampling import LogitBias, Penalties, SamplingMetadata


def apply_adjustments(logits: np.ndarray, metadata: SamplingMetadata) -> None:
    """Apply the step's mask, bias and penalties, in this order. Mutates logits [L, V]."""
    if metadata.allowed is not None:
        apply_allowed(logits, metadata.allowed)
    if metadata.bias is not None:
        apply_bias(logits, metadata.bias)
    if metadata.penalties is not None:
        apply_penalties(logits, metadata.penalties)


def apply_allowed(logits: np.ndarray, allowed: np.ndarray) -> None:
    """Set logits to -inf where the bit of the token is clear. Mutates logits [L, V]."""
    low_bytes_first = allowed.astype("<u4", copy=False).view(np.uint8)
    bits = np.unpackbits(low_bytes_first, axis=1, count=logits.shape[1], bitorder="little")
    logits[bits == 0] = -np.inf


def apply_bias(logits: np.ndarray, bias: LogitBias) -> None:
    """Add each value to its token's logit. Mutates logits [L, V]."""
    rows = np.repeat(np.arange(len(logits)), np.diff(bias.tokens.offsets))
    np.add.at(logits, (rows, bias.tokens.token_ids), bias.values)


def apply_penalties(logits: np.ndarray, penalties: Penalties) -> None:
    """Make seen tokens less likely: by repetition first, then by frequency, then by presence.

    Mutates logits [L, V].
    """
    for i, row in enumerate(penalties.rows.tolist()):
        seen = penalties.seen[row, : penalties.num_seen[row]]
        counts = penalties.counts[row, seen] - 1  # in the output
        repetition, frequency, presence = (
            each[i] for each in (penalties.repetition, penalties.frequency, penalties.presence)
        )
        penalized = logits[i, seen]
        with np.errstate(over="ignore"):  # the sampler handles infinite logits
            penalized = np.where(penalized > 0, penalized / repetition, penalized * repetition)
        penalized -= counts.astype(np.float32) * frequency
        logits[i, seen] = np.where(counts > 0, penalized - presence, penalized)
