"""Every quantized format written out as float32: the reference that all kernels are compared with.

A format is a row of `_DECODERS`: the layout of its block as a numpy record, and a function from n such
records to float32 `[n, elements]` (or a shape that flattens to it). Block layouts are those of ggml
(ggml-common.h and the `dequantize_row_*` functions of ggml-quants.c); operations keep the order of that code,
so that results are the same bits.

In the functions below `d` and `dmin` are the float16 scale and minimum of a block, `qs` the low bits of its
quants, `qh` their high bits, `scales` the small integers that scale `d` for each sub-block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from octavo.errors import UnsupportedError, WeightError
from octavo.weights.formats import Format

Floats = NDArray[np.float32]
Number = TypeVar("Number", bound=np.number)

# Keeps the temporaries of a chunk (a few float32 copies of it) within the second-level cache.
_CHUNK_ELEMENTS = 1 << 16

# Quants of IQ4_NL and IQ4_XS are indices into this table of unevenly spaced values (kvalues_iq4nl in ggml).
_IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


def dequantize(format: Format, data: np.ndarray) -> Floats:
    """The values of `data`, uint8 `[rows, row_bytes]` in `format`, as a new float32 array `[rows, cols]`.

    Raises UnsupportedError when the format is not one of SUPPORTED_FORMATS, WeightError when `data` is not
    made of rows of whole blocks.
    """
    if format.name not in _DECODERS:
        supported = ", ".join(SUPPORTED_FORMATS)
        raise UnsupportedError(f"cannot dequantize {format.name} tensors; supported: {supported}")
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] % format.block_bytes:
        raise WeightError(
            f"{format.name} data must be uint8 [rows, a multiple of {format.block_bytes}], "
            f"not {data.dtype} {data.shape}"
        )
    layout, decode = _DECODERS[format.name]
    blocks = data.reshape(-1).view(layout)
    values = np.empty((len(blocks), format.block_size), np.float32)
    step = _CHUNK_ELEMENTS // format.block_size
    for start in range(0, len(blocks), step):
        chunk = blocks[start : start + step]
        values[start : start + step] = decode(chunk).reshape(len(chunk), -1)
    return values.reshape(len(data), data.shape[1] // format.block_bytes * format.block_size)


def _unpack(packed: NDArray[np.uint8], width: int, bits: int) -> NDArray[np.uint8]:
    """The `bits`-wide unsigned fields of `packed`, uint8 `[n, bytes]`, as uint8 `[n, bytes * 8 / bits]`.

    Bytes come in groups of `width`. A group yields the lowest field of each of its bytes, then the next
    higher field of each, and so on:

        width 2, bits 4:   bytes  [a1 a0] [b1 b0] | [c1 c0] [d1 d0]   →   a0 b0 a1 b1 | c0 d0 c1 d1
    """
    num_blocks, num_bytes = packed.shape
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    groups = packed.reshape(num_blocks, num_bytes // width, 1, width)
    return (groups >> shifts & np.uint8((1 << bits) - 1)).reshape(num_blocks, num_bytes * 8 // bits)


def _signed(unsigned: np.ndarray, zero: int) -> NDArray[np.int8]:
    """Unsigned quants as int8, counted from `zero`."""
    return unsigned.astype(np.int8) - np.int8(zero)


def _column(scale: np.ndarray) -> Floats:
    """One float16 per block, `[n]`, as a float32 column `[n, 1]`."""
    return scale.astype(np.float32)[:, None]


def _sub_blocks(quants: NDArray[Number], num_sub_blocks: int) -> NDArray[Number]:
    """Quants `[n, elements]` as `[n, sub-blocks, elements of each]`."""
    return quants.reshape(len(quants), num_sub_blocks, -1)


def _plain(blocks: np.ndarray) -> Floats:
    return blocks.astype(np.float32)


def _bf16(blocks: np.ndarray) -> Floats:
    return (blocks.astype(np.uint32) << 16).view(np.float32)


# Blocks of 32 elements with one scale.


def _q4_0(b: np.ndarray) -> Floats:
    return _column(b["d"]) * _signed(_unpack(b["qs"], 16, 4), 8)


def _q4_1(b: np.ndarray) -> Floats:
    return _column(b["d"]) * _unpack(b["qs"], 16, 4) + _column(b["m"])


def _q5_quants(b: np.ndarray) -> NDArray[np.uint8]:
    return _unpack(b["qs"], 16, 4) | _unpack(b["qh"], 1, 1) << np.uint8(4)


def _q5_0(b: np.ndarray) -> Floats:
    return _column(b["d"]) * _signed(_q5_quants(b), 16)


def _q5_1(b: np.ndarray) -> Floats:
    return _column(b["d"]) * _q5_quants(b) + _column(b["m"])


def _q8_0(b: np.ndarray) -> Floats:
    quants: NDArray[np.int8] = b["qs"]
    return _column(b["d"]) * quants


def _iq4_nl(b: np.ndarray) -> Floats:
    return _column(b["d"]) * _IQ4_VALUES[_unpack(b["qs"], 16, 4)]


# Super-blocks of 256 elements: sub-blocks of 16 or 32, each with a small integer scale.


def _q2_k(b: np.ndarray) -> Floats:
    scale: Floats = _column(b["d"]) * (b["scales"] & 15)
    minimum: Floats = _column(b["dmin"]) * (b["scales"] >> 4)
    return scale[:, :, None] * _sub_blocks(_unpack(b["qs"], 32, 2), 16) - minimum[:, :, None]


def _q3_k(b: np.ndarray) -> Floats:
    low, high = b["scales"][:, :8], b["scales"][:, 8:]
    scale = _column(b["d"]) * _signed(_unpack(low, 8, 4) | _unpack(high, 4, 2) << 4, 32)
    quants = _signed(_unpack(b["qs"], 32, 2) | _unpack(b["qh"], 32, 1) << 2, 4)
    return scale[:, :, None] * _sub_blocks(quants, 16)


def _scale_and_minimum(b: np.ndarray) -> tuple[Floats, Floats]:
    """Scale and minimum of the eight sub-blocks of Q4_K and Q5_K, each float32 `[n, 8, 1]`.

    The 12 bytes hold eight 6-bit scales S and eight 6-bit minimums M. Sub-blocks 0 to 3 lie whole in the low
    six bits of bytes 0-3 (S) and 4-7 (M); of 4 to 7 the upper two bits are on top of those and the lower four
    in bytes 8-11:

        byte i  S[i+4] 5:4 | S[i]         byte 4+i  M[i+4] 5:4 | M[i]         byte 8+i  M[i+4] 3:0 | S[i+4]
        3:0
    """
    first, second, third = b["scales"][:, :4], b["scales"][:, 4:8], b["scales"][:, 8:]
    scales = np.concatenate([first & 63, first >> 6 << 4 | third & 15], axis=1)
    minimums = np.concatenate([second & 63, second >> 6 << 4 | third >> 4], axis=1)
    return (_column(b["d"]) * scales)[:, :, None], (_column(b["dmin"]) * minimums)[:, :, None]


def _q4_k(b: np.ndarray) -> Floats:
    scale, minimum = _scale_and_minimum(b)
    return scale * _sub_blocks(_unpack(b["qs"], 32, 4), 8) - minimum


def _q5_k(b: np.ndarray) -> Floats:
    scale, minimum = _scale_and_minimum(b)
    return scale * _sub_blocks(_unpack(b["qs"], 32, 4) | _unpack(b["qh"], 32, 1) << 4, 8) - minimum


def _q6_k(b: np.ndarray) -> Floats:
    scale: Floats = _column(b["d"]) * b["scales"]
    quants = _signed(_unpack(b["qs"], 64, 4) | _unpack(b["qh"], 32, 2) << 4, 32)
    return scale[:, :, None] * _sub_blocks(quants, 16)


def _iq4_xs(b: np.ndarray) -> Floats:
    scale = _column(b["d"]) * _signed(_unpack(b["scales_l"], 1, 4) | _unpack(b["scales_h"], 1, 2) << 4, 32)
    return scale[:, :, None] * _sub_blocks(_IQ4_VALUES[_unpack(b["qs"], 16, 4)], 8)


_Decoder = tuple[np.dtype, Callable[[np.ndarray], np.ndarray]]


def _block(*fields: tuple[str, str] | tuple[str, str, int]) -> np.dtype:
    """A packed little-endian record, fields in the order of the file."""
    return np.dtype(list(fields))


_DECODERS: dict[str, _Decoder] = {
    "F32": (np.dtype("<f4"), _plain),
    "F16": (np.dtype("<f2"), _plain),
    "BF16": (np.dtype("<u2"), _bf16),
    "F64": (np.dtype("<f8"), _plain),
    "I8": (np.dtype("i1"), _plain),
    "I16": (np.dtype("<i2"), _plain),
    "I32": (np.dtype("<i4"), _plain),
    "I64": (np.dtype("<i8"), _plain),
    "Q4_0": (_block(("d", "<f2"), ("qs", "u1", 16)), _q4_0),
    "Q4_1": (_block(("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)), _q4_1),
    "Q5_0": (_block(("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)), _q5_0),
    "Q5_1": (_block(("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)), _q5_1),
    "Q8_0": (_block(("d", "<f2"), ("qs", "i1", 32)), _q8_0),
    "Q2_K": (_block(("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")), _q2_k),
    "Q3_K": (_block(("qh", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")), _q3_k),
    "Q4_K": (_block(("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)), _q4_k),
    "Q5_K": (
        _block(("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)),
        _q5_k,
    ),
    "Q6_K": (_block(("qs", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")), _q6_k),
    "IQ4_NL": (_block(("d", "<f2"), ("qs", "u1", 16)), _iq4_nl),
    "IQ4_XS": (
        _block(("d", "<f2"), ("scales_h", "u1", 2), ("scales_l", "u1", 4), ("qs", "u1", 128)),
        _iq4_xs,
    ),
}

SUPPORTED_FORMATS: tuple[str, ...] = tuple(_DECODERS)
"""Names of the formats that `dequantize` knows."""
