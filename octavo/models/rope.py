"""Inverse frequencies of rotary embeddings, and the ways to stretch them over more positions than a model was
trained on.

Everything is computed once, in float64, and kept as float32. A scaling is a value with two answers: what
becomes of the frequencies, and by what queries and keys are multiplied besides (`magnitude`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from octavo.ops import Rope, RopeStyle


class RopeScaling(Protocol):
    """One way of stretching."""

    @property
    def magnitude(self) -> float:
        """Factor on rotated queries and keys."""

    def scale(self, frequencies: np.ndarray, theta: float) -> np.ndarray:
        """From frequencies [size / 2] float64 of a plain embedding of base `theta` to stretched ones."""


@dataclass(frozen=True, slots=True)
class NoScaling:
    """The positions a model was trained on, and no more."""

    magnitude: ClassVar[float] = 1.0

    def scale(self, frequencies: np.ndarray, theta: float) -> np.ndarray:
        """The frequencies as they are."""
        return frequencies


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor` (Extending Context Window of Large Language Models via Positional
    Interpolation, 2023).
    """

    factor: float
    magnitude: ClassVar[float] = 1.0

    def scale(self, frequencies: np.ndarray, theta: float) -> np.ndarray:
        """Every frequency divided by the factor."""
        return frequencies / self.factor


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Slow frequencies divided by `factor`, fast ones kept, a ramp between (The Llama 3 Herd of Models, 2024;
    formula of the code Meta released with Llama 3.1).

    Slow is what turns less than `low_frequency_factor` times within the original context, fast is what turns
    more than `high_frequency_factor` times.
    """

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context: int  # tokens
    magnitude: ClassVar[float] = 1.0

    def scale(self, frequencies: np.ndarray, theta: float) -> np.ndarray:
        """A mixture of kept and divided frequencies, by how often each turns."""
        turns = self.original_context * frequencies / (2 * math.pi)
        kept = (turns - self.low_frequency_factor) / (self.high_frequency_factor - self.low_frequency_factor)
        return _mix(frequencies, frequencies / self.factor, kept)


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """As Llama3Scaling, with the ramp linear in the feature's index (YaRN: Efficient Context Window
    Extension, 2023).

    Features that turn more than `beta_fast` times within the original context keep their frequency, those
    that turn less than `beta_slow` times have it divided. `truncate` widens the ramp to whole features, as
    the paper's code does.
    """

    factor: float
    original_context: int  # tokens
    magnitude: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def scale(self, frequencies: np.ndarray, theta: float) -> np.ndarray:
        """A mixture of kept and divided frequencies, by the feature's index."""
        size = 2 * len(frequencies)
        low, high = (self._feature_turning(beta, size, theta) for beta in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        divided = (np.arange(len(frequencies)) - low) / max(high - low, 0.001)  # a ramp of no width is a step
        return _mix(frequencies, frequencies / self.factor, 1 - divided)

    def _feature_turning(self, turns: float, size: int, theta: float) -> float:
        """Index of the (imaginary) feature that turns `turns` times within the original context."""
        return size * math.log(self.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))


def yarn_magnitude(factor: float, multiplier: float = 1.0) -> float:
    """The magnitude YaRN advises for stretching by `factor`: 1 when nothing is stretched."""
    return 0.1 * multiplier * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """The rotary embedding of a model: base, how many features of a head turn, and how it is stretched."""

    theta: float
    rotary_size: int
    scaling: RopeScaling = field(default_factory=NoScaling)


def make_rope(spec: RopeSpec, style: RopeStyle, divisors: np.ndarray | None = None) -> Rope:
    """The rotary embedding that `spec` describes.

    `divisors` [rotary_size / 2] divide the frequencies before they are scaled: the `rope_freqs` tensor of a
    GGUF file, which holds a scaling (Llama 3's, as a rule) worked out when the file was made.
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
