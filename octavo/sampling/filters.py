"""Filters that drop tokens before a draw: min_p, top_k, top_p.

Each takes the processed logits of one row [V], where -inf means that a token is dropped, and sets more of
them to -inf. The most likely token is never dropped. Among equal logits the smaller token id counts as more
likely.
"""

from __future__ import annotations

import math

import numpy as np


def most_likely(logits: np.ndarray, count: int) -> np.ndarray:
    """Return the ids of the `count` largest logits [V], largest first, ties by id: [min(count, V)] int64."""
    if count == 0:
        return np.empty(0, np.int64)
    if count >= len(logits):
        ids = np.arange(len(logits))
    else:
        smallest = np.partition(logits, -count)[-count]
        ids = np.flatnonzero(logits >= smallest)  # more than `count` when several equal the smallest
    return ids[np.argsort(-logits[ids], kind="stable")][:count]


def apply_min_p(logits: np.ndarray, min_p: float) -> None:
    """Drop tokens less likely than `min_p` × the most likely one; 1 = keep only that. Mutates logits [V]."""
    if min_p >= 1:
        apply_top_k(logits, 1)
    else:
        logits[logits < logits.max() + math.log(min_p)] = -np.inf


def apply_top_k(logits: np.ndarray, top_k: int) -> None:
    """Keep the `top_k` most likely tokens. Mutates logits [V]."""
    if top_k < len(logits):
        _keep(logits, most_likely(logits, top_k))


def apply_top_p(logits: np.ndarray, top_p: float) -> None:
    """Keep the fewest most likely tokens that together reach the probability `top_p`. Mutates logits [V].

    (Nucleus sampling; Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019.)
    """
    probs = np.exp(logits - logits.max())
    probs /= probs.sum()
    # All tokens below this bound together have a probability less than 1 - top_p, so top_p is reached without
    # them, and they need not be sorted. The 2 is a margin for rounding.
    bound = (1 - top_p) / (2 * len(probs))
    candidates = np.flatnonzero(probs >= bound)
    order = candidates[np.argsort(-logits[candidates], kind="stable")]
    needed = int(np.searchsorted(np.cumsum(probs[order]), top_p)) + 1
    _keep(logits, order[:needed])


def _keep(logits: np.ndarray, ids: np.ndarray) -> None:
    kept = logits[ids]
    logits.fill(-np.inf)
    logits[ids] = kept
