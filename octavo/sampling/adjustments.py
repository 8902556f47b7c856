"""What changes logits before anything is chosen: masks of allowed tokens, biases, penalties.

Each works on the logits [L, V] float32 of a whole step, in float32. A logit of -inf stays what it is, so the
order matters only between bias and penalties: a penalty sees the logit with its bias.
"""

from __future__ import annotations

import numpy as np

from octavo.types.sampling import LogitBias, Penalties, SamplingMetadata, TokenLists


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
    """Make tokens less likely that the row has seen: repetition first, then frequency, then presence.

    Mutates logits [L, V].
    """
    for row in range(len(logits)):
        seen = np.union1d(_tokens(penalties.prompt, row), _tokens(penalties.output, row))
        kept = logits[row, seen]
        repetition = penalties.repetition[row]
        with np.errstate(over="ignore"):  # an infinite logit is seen to by the sampler
            logits[row, seen] = np.where(kept > 0, kept / repetition, kept * repetition)
        used, counts = np.unique(_tokens(penalties.output, row), return_counts=True)
        logits[row, used] -= counts.astype(np.float32) * penalties.frequency[row]
        logits[row, used] -= penalties.presence[row]


def _tokens(lists: TokenLists, row: int) -> np.ndarray:
    return lists.token_ids[lists.offsets[row] : lists.offsets[row + 1]]
