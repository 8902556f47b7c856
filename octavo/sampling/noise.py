"""Noise for sampling: a pure function of (seed, position, token id), without state and whatever the batch.

The integers come from SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
2014) with its finalizer, Stafford's variant 13. SplitMix64 is counter based: output i of a stream is a hash
of its state + (i + 1) × an odd constant. It is used at two levels. A request's seed starts a stream of keys,
one for each position. A key starts a stream of 64-bit numbers, one for each token id. Any implementation must
give the same integers; see the known values in the tests.
"""

from __future__ import annotations

import numpy as np

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, made odd
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_DROPPED_BITS = np.uint64(12)  # 52 bits remain, so that the middle of each of the 2**52 intervals is a double


def splitmix64(state: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return output `index` of the SplitMix64 stream that starts at `state`. Arrays of uint64, broadcast.

    Neither may be a 0-d array: overflow is intended here, and numpy warns of it for scalars.
    """
    bits: np.ndarray = state + (index + np.uint64(1)) * _GOLDEN_GAMMA
    bits ^= bits >> _SHIFT_1
    bits *= _MULTIPLIER_1
    bits ^= bits >> _SHIFT_2
    bits *= _MULTIPLIER_2
    bits ^= bits >> _SHIFT_3
    return bits


def random_bits(seed: int, position: int, token_ids: np.ndarray) -> np.ndarray:
    """Return 64 random bits for each token id at `position` of a sequence: [k] integers → [k] uint64."""
    keys = splitmix64(np.array([seed], np.uint64), np.array([position], np.uint64))
    return splitmix64(keys, token_ids.astype(np.uint64))


def uniform_noise(seed: int, position: int, token_ids: np.ndarray) -> np.ndarray:
    """Return uniform numbers strictly between 0 and 1: [k] integers → [k] float64."""
    return ((random_bits(seed, position, token_ids) >> _DROPPED_BITS) + 0.5) * 2.0**-52


def gumbel_noise(seed: int, position: int, token_ids: np.ndarray) -> np.ndarray:
    """Return standard Gumbel noise: [k] integers → [k] float64.

    The arg max of logits + noise is a draw from softmax(logits) (Gumbel, "Statistical Theory of Extreme
    Values", 1954).
    """
    noise: np.ndarray = -np.log(-np.log(uniform_noise(seed, position, token_ids)))
    return noise
