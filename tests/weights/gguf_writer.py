"""Writes small GGUF files for tests: `build_gguf` is a pure function from metadata and tensors to bytes.

It shares no code with the reader but the table of formats, which has a test of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from octavo.weights.formats import FORMATS, Format

Tensor = np.ndarray | tuple[str, np.ndarray]
"""A float32, float16, float64 or integer array; or a format's name and its data, uint8 `[..., row_bytes]`."""

_STRING, _ARRAY = 8, 9
_VALUE_TYPES: dict[type, tuple[int, str]] = {
    np.uint8: (0, "<B"),
    np.int8: (1, "<b"),
    np.uint16: (2, "<H"),
    np.int16: (3, "<h"),
    np.uint32: (4, "<I"),
    np.int32: (5, "<i"),
    np.float32: (6, "<f"),
    np.bool_: (7, "<?"),
    np.uint64: (10, "<Q"),
    np.int64: (11, "<q"),
    np.float64: (12, "<d"),
    # Python's own types, as converters usually write them.
    bool: (7, "<?"),
    int: (4, "<I"),
    float: (6, "<f"),
}
_FORMAT_OF_DTYPE = {
    "float32": "F32",
    "float16": "F16",
    "float64": "F64",
    "bfloat16": "BF16",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
}


def build_gguf(
    metadata: Mapping[str, object],
    tensors: Mapping[str, Tensor],
    *,
    version: int = 3,
    alignment: int | None = None,
    data_order: Sequence[str] | None = None,
    final_padding: bool = True,
) -> bytes:
    """A valid GGUF file.

    A value of `metadata` is a str, bool, int (written as uint32), float (float32), numpy scalar (its own
    type), or a list or numpy array of these. `alignment` other than None is written as general.alignment.
    `data_order` puts the tensors' data in another order than their entries; without `final_padding` the file
    ends with the last byte of data.
    """
    if alignment is not None:
        metadata = {**metadata, "general.alignment": alignment}
    align = alignment or 32
    stored = {name: _stored(tensor) for name, tensor in tensors.items()}
    offsets: dict[str, int] = {}
    data = b""
    for name in data_order or stored:
        data += _padding(len(data), align)
        offsets[name] = len(data)
        data += stored[name][2]
    if final_padding:
        data += _padding(len(data), align)

    header = b"GGUF" + struct.pack("<IQQ", version, len(stored), len(metadata))
    for key, value in metadata.items():
        value_type, payload = _value(value)
        header += _string(key) + struct.pack("<I", value_type) + payload
    for name, (format, shape, _) in stored.items():
        header += (
            _string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        )
        header += struct.pack("<IQ", format.ggml_type, offsets[name])
    return header + _padding(len(header), align) + data


def _stored(tensor: Tensor) -> tuple[Format, tuple[int, ...], bytes]:
    if isinstance(tensor, np.ndarray):
        return FORMATS[_FORMAT_OF_DTYPE[tensor.dtype.name]], tensor.shape, tensor.tobytes()
    format, data = FORMATS[tensor[0]], tensor[1]
    num_cols = data.shape[-1] // format.block_bytes * format.block_size
    return format, (*data.shape[:-1], num_cols), data.tobytes()


def _value(value: object) -> tuple[int, bytes]:
    """The type number and the bytes of a metadata value."""
    if isinstance(value, str):
        return _STRING, _string(value)
    if isinstance(value, list | np.ndarray):
        elements = [_value(element) for element in value]
        element_type = elements[0][0] if elements else 4
        return _ARRAY, struct.pack("<IQ", element_type, len(elements)) + b"".join(raw for _, raw in elements)
    number, code = _VALUE_TYPES[type(value)]
    return number, struct.pack(code, value)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _padding(size: int, alignment: int) -> bytes:
    return bytes(-size % alignment)
