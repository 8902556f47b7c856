"""Decides which drafts are accepted: those that equal the tokens that sampling chooses.

A draft is a guess of a next token. Since noise is keyed by (seed, position), sampling gives the same token
whether it was guessed or not. So a draft is right if it equals the token that is sampled in its place, and
the output is the same with drafts and without (speculative decoding with greedy verification, as in
Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding", 2023, for draws
whose noise is fixed beforehand).
"""

from __future__ import annotations

import numpy as np


def count_gained(sampled: np.ndarray, guessed: np.ndarray, start_loc: np.ndarray) -> np.ndarray:
    """Return the number of tokens that each request gains: [S] int64.

    `sampled` [L] are the tokens sampled in each row, and `guessed` [L] the drafts in their place (in the last
    row of a request, any value); request i of S owns rows start_loc[i] : start_loc[i + 1]. A request gains
    the token of its first row, and of each row that follows only right drafts.
    """
    num_rows = np.diff(start_loc)
    if len(sampled) == len(num_rows):
        return np.ones(len(num_rows), np.int64)
    is_wrong = sampled != guessed
    is_wrong[start_loc[1:] - 1] = True  # no draft follows the last row
    wrong = np.flatnonzero(is_wrong)
    num_gained: np.ndarray = wrong[np.searchsorted(wrong, start_loc[:-1])] - start_loc[:-1] + 1
    return num_gained
