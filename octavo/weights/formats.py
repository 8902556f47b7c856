"""The tensor formats of model files: name, number and block layout of each.

A format says how the elements of a row are stored: in blocks of `block_size` elements that take
`block_bytes` bytes. `dequantize.py` defines the meaning of a block's bits. Sources: the `ggml_type`
enumeration and block structures of ggml (ggml.h, ggml-common.h), and the dtype names of the safetensors
format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from octavo.errors import WeightError


@dataclass(frozen=True, slots=True)
class Format:
    """How the elements of a tensor are stored.

    `ggml_type` is the number by which GGUF files name the format; None for formats that only safetensors
    files have.
    """

    name: str
    ggml_type: int | None
    block_size: int  # elements
    block_bytes: int

    def row_bytes(self, num_elements: int) -> int:
        """Bytes of a row of `num_elements` elements. Raises WeightError unless they fill whole blocks."""
        num_blocks, rest = divmod(num_elements, self.block_size)
        if rest:
            raise WeightError(
                f"a row of {num_elements} elements cannot be {self.name}, "
                f"which takes a multiple of {self.block_size}"
            )
        return num_blocks * self.block_bytes


# Numbers that are missing (4, 5, 31-33, 36-38) belong to formats that ggml has removed.
_TABLE = (
    # name, ggml_type, block_size, block_bytes
    Format("F32", 0, 1, 4),
    Format("F16", 1, 1, 2),
    Format("Q4_0", 2, 32, 18),
    Format("Q4_1", 3, 32, 20),
    Format("Q5_0", 6, 32, 22),
    Format("Q5_1", 7, 32, 24),
    Format("Q8_0", 8, 32, 34),
    Format("Q8_1", 9, 32, 40),
    Format("Q2_K", 10, 256, 84),
    Format("Q3_K", 11, 256, 110),
    Format("Q4_K", 12, 256, 144),
    Format("Q5_K", 13, 256, 176),
    Format("Q6_K", 14, 256, 210),
    Format("Q8_K", 15, 256, 292),
    Format("IQ2_XXS", 16, 256, 66),
    Format("IQ2_XS", 17, 256, 74),
    Format("IQ3_XXS", 18, 256, 98),
    Format("IQ1_S", 19, 256, 50),
    Format("IQ4_NL", 20, 32, 18),
    Format("IQ3_S", 21, 256, 110),
    Format("IQ2_S", 22, 256, 82),
    Format("IQ4_XS", 23, 256, 136),
    Format("I8", 24, 1, 1),
    Format("I16", 25, 1, 2),
    Format("I32", 26, 1, 4),
    Format("I64", 27, 1, 8),
    Format("F64", 28, 1, 8),
    Format("IQ1_M", 29, 256, 56),
    Format("BF16", 30, 1, 2),
    Format("TQ1_0", 34, 256, 54),
    Format("TQ2_0", 35, 256, 66),
    Format("MXFP4", 39, 32, 17),
    Format("NVFP4", 40, 64, 36),
    Format("Q1_0", 41, 128, 18),
    Format("BOOL", None, 1, 1),
    Format("U8", None, 1, 1),
    Format("U16", None, 1, 2),
    Format("U32", None, 1, 4),
    Format("U64", None, 1, 8),
    Format("F8_E4M3", None, 1, 1),
    Format("F8_E5M2", None, 1, 1),
    Format("F8_E8M0", None, 1, 1),
)

FORMATS: Mapping[str, Format] = MappingProxyType({format.name: format for format in _TABLE})
"""Every known format by its name."""

_BY_GGML_TYPE = {format.ggml_type: format for format in _TABLE if format.ggml_type is not None}


def format_named(name: str) -> Format:
    """The format called `name`, in upper case. Raises WeightError when there is none."""
    if name not in FORMATS:
        raise WeightError(f"unknown tensor format {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]


def format_of_ggml_type(number: int) -> Format:
    """The format that ggml numbers `number`. Raises WeightError when there is none."""
    if number not in _BY_GGML_TYPE:
        raise WeightError(f"unknown ggml tensor type {number}; known numbers: {sorted(_BY_GGML_TYPE)}")
    return _BY_GGML_TYPE[number]
