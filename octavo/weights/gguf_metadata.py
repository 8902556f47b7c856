"""The key-value section of a GGUF file, and the checked reader of its whole header.

Source: the GGUF specification, versions 2 and 3 (docs/gguf.md in the ggml repository). A value is a type
number (u32) and then a scalar, a string (u64 length, UTF-8 bytes), or an array (u32 element type, u64 count,
elements, which may be arrays).

When a file is opened, arrays are skipped and only their bounds are checked. An array, such as a vocabulary,
is decoded when it is first read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.errors import WeightError
from octavo.weights.mapped_file import MappedFile

Value = bool | int | float | str | list["Value"]
"""What a metadata key holds."""

# For metadata and tensor list together. A vocabulary of 262144 tokens takes 7 MB. This bound limits the time
# and the memory that a hostile file of any size can take.
MAX_HEADER_BYTES = 128 << 20

# Deeper than any writer nests, shallow enough for plain recursion.
MAX_ARRAY_DEPTH = 4

# GGUF value types by number. The codes mean the same to `struct` and to numpy.
_SCALAR_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING = 8
_ARRAY = 9

_SCALARS = {number: struct.Struct("<" + code) for number, code in _SCALAR_CODES.items()}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_ARRAY_START = struct.Struct("<IQ")  # element type, count

# The fewest bytes that a value of each type takes. A count is checked with them before it is used.
_MIN_BYTES = {number: scalar.size for number, scalar in _SCALARS.items()} | {
    _STRING: _U64.size,
    _ARRAY: _ARRAY_START.size,
}


class HeaderReader:
    """Reads a GGUF header from front to back; no read goes beyond the file or beyond MAX_HEADER_BYTES.

    `position` is the byte of the file that is read next. Every method takes `what`, the name of what is
    read, for the WeightError that it raises when the file ends before.
    """

    def __init__(self, file: MappedFile, position: int = 0) -> None:
        self.file = file
        self.position = position
        self._end = min(file.size, MAX_HEADER_BYTES)

    def require(self, num_bytes: int, what: str) -> None:
        """Check that at least `num_bytes` more bytes follow."""
        if num_bytes > self._end - self.position:
            raise self._beyond_end(num_bytes, what)

    def take(self, num_bytes: int, what: str) -> tuple[int, int]:
        """Skip `num_bytes` bytes. Returns their first and their past-the-end position."""
        self.require(num_bytes, what)
        start = self.position
        self.position += num_bytes
        return start, self.position

    def unpack(self, layout: struct.Struct, what: str) -> tuple[Any, ...]:
        """The next fields, in the layout `layout`."""
        start, _ = self.take(layout.size, what)
        return layout.unpack_from(self.file.buffer, start)

    def u32(self, what: str) -> int:
        """The next unsigned 32-bit integer."""
        return int(self.unpack(_U32, what)[0])

    def u64(self, what: str) -> int:
        """The next unsigned 64-bit integer."""
        return int(self.unpack(_U64, what)[0])

    def string(self, what: str) -> str:
        """The next string. Raises WeightError when it is not UTF-8."""
        return self.strings(1, what)[0]

    def strings(self, count: int, what: str) -> list[str]:
        """The next `count` strings. Raises WeightError when one is not UTF-8."""
        buffer = self.file.buffer
        try:
            return [buffer[start:end].decode() for start, end in self.string_spans(count, what)]
        except UnicodeDecodeError as error:
            raise self.file.error(f"{what} is not UTF-8: {error.reason} in {error.object[:40]!r}") from error

    def string_spans(self, count: int, what: str) -> Iterator[tuple[int, int]]:
        """The (start, end) of the bytes of each of the next `count` strings, read lazily."""
        buffer, end, read_length = self.file.buffer, self._end, _U64.unpack_from
        for _ in range(count):
            start = self.position + _U64.size
            if start > end:
                raise self._beyond_end(_U64.size, what)
            (length,) = read_length(buffer, self.position)
            self.position = start
            if length > end - start:
                raise self._beyond_end(length, what)
            self.position += length
            yield start, self.position

    def skip_strings(self, count: int, what: str) -> None:
        """Skip the next `count` strings."""
        buffer, position, read_length = self.file.buffer, self.position, _U64.unpack_from
        try:
            # A vocabulary and its merges are skipped at every start, so this loop has to be fast.
            for _ in range(count):
                position += _U64.size + read_length(buffer, position)[0]
        except (struct.error, OverflowError):  # beyond the file, or beyond the range of an index
            position = self._end + 1
        if position <= self._end:
            self.position = position
            return
        for _ in self.string_spans(count, what):  # raises for the string that does not fit
            pass

    def _beyond_end(self, num_bytes: int, what: str) -> WeightError:
        if num_bytes <= self.file.size - self.position:
            return self.file.error(f"{what} ends beyond the {MAX_HEADER_BYTES} bytes that a header may take")
        return self.file.truncated(what, num_bytes, self.position)


class Metadata(Mapping[str, Value]):
    """The keys and values of a GGUF file, in file order.

    An array is a list, decoded when it is first asked for; that raises WeightError when it holds text that is
    not UTF-8.
    """

    def __init__(self, file: MappedFile, values: dict[str, Value | _UnreadArray]) -> None:
        self._file = file
        self._values = values

    def __getitem__(self, key: str) -> Value:
        value = self._values[key]
        if isinstance(value, _UnreadArray):
            reader = HeaderReader(self._file, value.position)
            value = self._values[key] = _read_array(reader, f"metadata key {key!r}")
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@dataclass(frozen=True, slots=True)
class _UnreadArray:
    """An array at byte `position` of the file. Its bounds have been checked."""

    position: int


def read_metadata(reader: HeaderReader, num_keys: int) -> Metadata:
    """The next `num_keys` keys and values. Raises WeightError for a repeated key or a malformed value."""
    # An entry takes at least an empty key (u64), a type number (u32) and a value of one byte.
    reader.require(num_keys * 13, f"metadata of {num_keys} keys")
    values: dict[str, Value | _UnreadArray] = {}
    for index in range(num_keys):
        key = reader.string(f"the name of metadata key {index + 1} of {num_keys}")
        if key in values:
            raise reader.file.error(f"metadata key {key!r} occurs twice: the file is damaged")
        values[key] = _read_value(reader, f"metadata key {key!r}")
    return Metadata(reader.file, values)


def _read_value(reader: HeaderReader, what: str) -> Value | _UnreadArray:
    value_type = _known_type(reader, reader.u32(what), what)
    if value_type == _STRING:
        return reader.string(what)
    if value_type == _ARRAY:
        array = _UnreadArray(reader.position)
        _skip_array(reader, what)
        return array
    value: Value = reader.unpack(_SCALARS[value_type], what)[0]
    return value


def _skip_array(reader: HeaderReader, what: str, depth: int = 1) -> None:
    element_type, count = _array_start(reader, what, depth)
    if element_type == _STRING:
        reader.skip_strings(count, what)
    elif element_type == _ARRAY:
        for _ in range(count):
            _skip_array(reader, what, depth + 1)
    else:
        reader.take(count * _MIN_BYTES[element_type], what)


def _read_array(reader: HeaderReader, what: str, depth: int = 1) -> list[Any]:
    element_type, count = _array_start(reader, what, depth)
    if element_type == _STRING:
        return reader.strings(count, what)
    if element_type == _ARRAY:
        return [_read_array(reader, what, depth + 1) for _ in range(count)]
    start, end = reader.take(count * _MIN_BYTES[element_type], what)
    values = np.frombuffer(reader.file.buffer[start:end], "<" + _SCALAR_CODES[element_type])
    return list(values.tolist())


def _array_start(reader: HeaderReader, what: str, depth: int) -> tuple[int, int]:
    """The element type and the count of the array that starts here. Checks that the count is possible."""
    if depth > MAX_ARRAY_DEPTH:
        raise reader.file.error(f"{what} nests arrays more than {MAX_ARRAY_DEPTH} deep: the file is damaged")
    element_type, count = reader.unpack(_ARRAY_START, what)
    min_bytes = _MIN_BYTES[_known_type(reader, element_type, what)]
    reader.require(count * min_bytes, f"{what}, an array of {count} elements,")
    return element_type, count


def _known_type(reader: HeaderReader, number: int, what: str) -> int:
    if number not in _MIN_BYTES:
        raise reader.file.error(f"{what} has the unknown value type {number}; known: {sorted(_MIN_BYTES)}")
    return number
