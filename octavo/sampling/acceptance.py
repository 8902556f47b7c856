"""Acceptance of drafts: a draft is accepted if it and all drafts before it equal the sampled tokens.

Noise is keyed by (seed, position), so sampling gives the same token whether it was drafted or not. Therefore
a draft is right if it equals the token that is sampled at its position, and the text is the same with drafts
and without (speculative decoding with greedy
verification, as in Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding",
2023, for draws whose noise is fixed beforehand).
"""

from __future__ import annotations

import numpy as np


def count_gained(sampled: np.ndarray, guessed: np.ndarray, start_loc: np.ndarray) -> np.ndarray:
    """Return the number of tokens that each request gains: [S] int64.

    `sampled` [L] is the token sampled from each row, and `guessed` [L] is the draft at the same position. It
    may be anything in the last row of a request, which has no draft. Request i of S owns rows
    start_loc[i] : start_loc[i + 1]. A request gains the token of its first row, and of each row that follows
    only right drafts.
    """
    num_rows = np.diff(start_loc)
    if len(sampled) == len(num_rows):
        return np.ones(len(num_rows), np.int64)
    is_wrong = sampled != guessed
    is_wrong[start_loc[1:] - 1] = True  # no draft follows the last row
    wrong = np.flatnonzero(is_wrong)
    num_gained: np.ndarray = wrong[np.searchsorted(wrong, start_loc[:-1])] - start_loc[:-1] + 1
    return num_gained
