"""The inverse frequencies of rotary embeddings, and the ways to stretch them over more positions than a model
was trained on.

Everything is computed once, in float64, and kept as float32. A scaling changes the frequencies, and may
multiply queries and keys by a factor, its `magnitude`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from octavo.ops import Rope, RopeStyle


class RopeScaling(Protocol):
    """One way to stretch a rotary embedding."""

    @property
    def magnitude(self) -> float:
        """Factor on rotated queries and keys."""

    def scale(self, frequencies: np.ndarray, theta: float) -> np.ndarray:
        """Stretch the plain `frequencies` [size / 2] float64, which have the base `theta`."""


@dataclass(frozen=True, slots=True)
class NoScaling:
    """No stretching: the positions are those that the model was trained on."""

    magnitude: ClassVar[float] = 1.0

    def scale(self, frequencies: np.ndarray, theta: float) -> np.ndarray:
        return frequencies


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor` (Extending Context Window of Large Language Models via Positional
    Interpolation, 2023).
    """

    factor: float
    magnitude: ClassVar[float] = 1.0

    def scale(self, frequencies: np.ndarray, theta: float) -> np.ndarray:
        return frequencies / self.factor


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Low frequencies are divided by `factor`, high ones are kept, and those between are interpolated (The
    Llama 3 Herd of Models, 2024; the formula is that of Meta's code for Llama 3.1).

    A low frequency turns less than `low_frequency_factor` times within the original context, a high one more
    than `high_frequency_factor` times.
    """

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context: int  # tokens
    magnitude: ClassVar[float] = 1.0

    def scale(self, frequencies: np.ndarray, theta: float) -> np.ndarray:
        turns = self.original_context * frequencies / (2 * math.pi)
        kept = (turns - self.low_frequency_factor) / (self.high_frequency_factor - self.low_frequency_factor)
        return _mix(frequencies, frequencies / self.factor, kept)


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """As Llama3Scaling, but the interpolation is linear in the feature's index (YaRN: Efficient Context
    Window Extension, 2023).

    A feature that turns more than `beta_fast` times within the original context keeps its frequency. The
    frequency of one that turns less than `beta_slow` times is divided by `factor`. With `truncate` the range
    between them is widened to whole indices, as in the paper's code.
    """

    factor: float
    original_context: int  # tokens
    magnitude: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def scale(self, frequencies: np.ndarray, theta: float) -> np.ndarray:
        size = 2 * len(frequencies)
        low, high = (self._feature_turning(beta, size, theta) for beta in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        divided = (np.arange(len(frequencies)) - low) / max(high - low, 0.001)  # never 0 / 0
        return _mix(frequencies, frequencies / self.factor, 1 - divided)

    def _feature_turning(self, turns: float, size: int, theta: float) -> float:
        """The index, not always whole, of the feature that turns `turns` times within the original
        context.
        """
        return size * math.log(self.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))


def yarn_magnitude(factor: float, multiplier: float = 1.0) -> float:
    """The magnitude that YaRN recommends for stretching by `factor`; 1 without stretching."""
    return 0.1 * multiplier * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """A rotary embedding: its base, how many features of a head it rotates, and how it is stretched."""

    theta: float
    rotary_size: int  # features
    scaling: RopeScaling = field(default_factory=NoScaling)


def make_rope(spec: RopeSpec, style: RopeStyle, divisors: np.ndarray | None = None) -> Rope:
    """The rotary embedding that `spec` describes.

    The frequencies are divided by `divisors` [rotary_size / 2] before they are scaled. These are the
    `rope_freqs` tensor of a GGUF file: a scaling, mostly Llama 3's, that was computed when the file was made.
    """
    frequencies = spec.theta ** -(np.arange(0, spec.rotary_size, 2) / spec.rotary_size)
    if divisors is not None:
        frequencies = frequencies / divisors
    scaled = spec.scaling.scale(frequencies, spec.theta)
    return Rope(scaled.astype(np.float32), style, spec.scaling.magnitude)


def _mix(kept: np.ndarray, divided: np.ndarray, share_kept: np.ndarray) -> np.ndarray:
    share = np.clip(share_kept, 0.0, 1.0)
    mixed: np.ndarray = share * kept + (1 - share) * divided
    return mixed
