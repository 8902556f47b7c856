"""Random weights in any format that the native backend multiplies. All values are finite."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from octavo.errors import UnsupportedError
from octavo.weights.formats import format_named
from octavo.weights.weight import Weight

# The byte offsets of the float16 scales of a block. All other bytes of a block may have any value.
SCALE_OFFSETS: Mapping[str, tuple[int, ...]] = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
}
PLAIN_FORMATS = ("F32", "F16", "BF16")
MAX_SCALE = 0.01  # weights are up to 4096 times a scale, so this keeps them at an ordinary size


def random_weight(format_name: str, num_rows: int, num_columns: int) -> Weight:
    """A matrix of shape (num_rows, num_columns). The same arguments give the same matrix.

    Raises UnsupportedError for a format that is not in PLAIN_FORMATS or SCALE_OFFSETS, and WeightError if the
    columns are not a whole number of blocks.
    """
    rng = np.random.default_rng(0)
    shape = (num_rows, num_columns)
    if format_name in PLAIN_FORMATS:
        data = _plain(format_name, rng.standard_normal(shape, np.float32)).view(np.uint8)
    elif format_name in SCALE_OFFSETS:
        data = _random_blocks(rng, format_name, shape)
    else:
        known = ", ".join((*PLAIN_FORMATS, *SCALE_OFFSETS))
        raise UnsupportedError(f"there are no random weights in format {format_name!r}; known: {known}")
    return Weight(f"random {format_name}", shape, format_named(format_name), data)


def _plain(format_name: str, numbers: np.ndarray) -> np.ndarray:
    if format_name == "F32":
        return numbers
    if format_name == "F16":
        return numbers.astype(np.float16)
    return (numbers.view(np.uint32) >> 16).astype(np.uint16)  # BF16 is the upper half of float32


def _random_blocks(rng: np.random.Generator, format_name: str, shape: tuple[int, int]) -> np.ndarray:
    format = format_named(format_name)
    num_rows, num_columns = shape
    row_bytes = format.row_bytes(num_columns)
    blocks = rng.integers(0, 256, (num_rows * row_bytes // format.block_bytes, format.block_bytes), np.uint8)
    for offset in SCALE_OFFSETS[format_name]:
        scales = rng.uniform(-MAX_SCALE, MAX_SCALE, (len(blocks), 1)).astype(np.float16)
        blocks[:, offset : offset + 2] = scales.view(np.uint8)
    return blocks.reshape(num_rows, row_bytes)
