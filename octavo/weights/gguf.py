"""GGUF files: one memory-mapped model, whole or in splits.

Source: the GGUF specification, versions 2 and 3 (docs/gguf.md in the ggml repository); the `split.*` keys and
shard names are those of llama.cpp's gguf-split. Layout of a file, little-endian:

    magic "GGUF" | version u32 | number of tensors u64 | number of keys u64
    keys and values                                                         (gguf_metadata.py)
    per tensor: name | number of dimensions u32 | dimensions u64 … | type u32 | offset u64
    padding to the alignment | data of the tensors, at their offsets from here

ggml lists a tensor's dimensions fastest first; a `Weight` has them row-major, so they are reversed here.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import WeightError
from octavo.weights.formats import format_of_ggml_type
from octavo.weights.gguf_metadata import HeaderReader, Metadata, read_metadata
from octavo.weights.mapped_file import MappedFile, TensorEntry
from octavo.weights.weight import Weight
from octavo.weights.weight_table import WeightTable

MAGIC = b"GGUF"

_SUPPORTED_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4  # GGML_MAX_DIMS

_START = struct.Struct("<4sI")  # magic, version
_COUNTS = struct.Struct("<QQ")  # tensors, keys
_TYPE_AND_OFFSET = struct.Struct("<IQ")

_SHARD_NAME = re.compile(r"(?P<model>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf")

# A shard that has one of these keys must have the same value for it as the first shard.
_MODEL_KEYS = ("split.count", "split.tensors.count", "general.architecture", "general.name")


class GGUFFile(WeightTable):
    """A GGUF model: its `metadata` (of the first shard) and its tensors (of all shards).

    Tensors are views of the mapped files. When a file is opened, every offset and size in its header is
    checked against the size of the file. So no later access is out of bounds.
    """

    def __init__(self, path: Path, metadata: Metadata, weights: dict[str, Weight]) -> None:
        super().__init__(path, weights)
        self.metadata = metadata

    @classmethod
    def open(cls, path: Path) -> GGUFFile:
        """Open the file at `path`, and the other shards of its model if it is a shard.

        Raises WeightError, naming the file and the key or tensor, when a file is missing, truncated,
        inconsistent, or not a GGUF that can be read.
        """
        part = _read_part(path)
        shard_paths = _shard_paths(part)
        if not shard_paths:
            return cls(path, part.metadata, part.weights)
        shards = [part if shard_path == path else _read_part(shard_path) for shard_path in shard_paths]
        return cls(path, shards[0].metadata, _join(shards))


@dataclass(frozen=True, slots=True)
class _Part:
    """One GGUF file, without the other shards of its model."""

    path: Path
    metadata: Metadata
    weights: dict[str, Weight]

    def integer(self, key: str, default: int | None = None) -> int:
        """The integer value of `key`. Raises WeightError for a value of another type."""
        value = self.metadata.get(key, default)
        if type(value) is not int:
            raise WeightError(f"{self.path}: metadata key {key!r} must hold an integer, not {value!r:.80}")
        return value


def _read_part(path: Path) -> _Part:
    file = MappedFile(path)
    reader = HeaderReader(file)
    _check_start(reader)
    num_tensors, num_keys = reader.unpack(_COUNTS, "the header")
    metadata = read_metadata(reader, num_keys)
    # A tensor takes at least a name length, a dimension count, a type and an offset.
    reader.require(num_tensors * 24, f"the list of {num_tensors} tensors")
    entries = [_read_tensor(reader, f"tensor {index + 1} of {num_tensors}") for index in range(num_tensors)]
    alignment = _alignment(file, metadata)
    for entry in entries:
        if entry.offset % alignment:
            raise file.error(f"tensor {entry.name!r} has offset {entry.offset}, not aligned to {alignment}")
    data_start = -(-reader.position // alignment) * alignment
    return _Part(path, metadata, file.weights(entries, data_start))


def _check_start(reader: HeaderReader) -> None:
    magic, version = reader.unpack(_START, "the header")
    if magic != MAGIC:
        raise reader.file.error(
            f"this is not a GGUF file: it begins with {magic!r}, not {MAGIC!r}; fetch it again"
        )
    if version & 0xFFFF == 0:
        raise reader.file.error("is a big-endian GGUF file; only little-endian ones can be read: convert it")
    if version not in _SUPPORTED_VERSIONS:
        raise reader.file.error(
            f"has GGUF version {version}; only {_SUPPORTED_VERSIONS} can be read: convert it"
        )


def _alignment(file: MappedFile, metadata: Metadata) -> int:
    value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(value) is not int or value < 1 or value & (value - 1):
        raise file.error(f"metadata key 'general.alignment' must hold a power of two, not {value!r:.80}")
    return value


def _read_tensor(reader: HeaderReader, what: str) -> TensorEntry:
    name = reader.string(what)
    what = f"the entry of tensor {name!r}"
    num_dimensions = reader.u32(what)
    if num_dimensions > _MAX_DIMENSIONS:
        raise reader.file.error(
            f"tensor {name!r} has {num_dimensions} dimensions, more than {_MAX_DIMENSIONS}"
        )
    dimensions = [reader.u64(what) for _ in range(num_dimensions)]
    ggml_type, offset = reader.unpack(_TYPE_AND_OFFSET, what)
    try:
        format = format_of_ggml_type(ggml_type)
    except WeightError as error:
        raise reader.file.error(f"tensor {name!r}: {error}") from error
    return TensorEntry(name, tuple(reversed(dimensions)), format, offset)


def _shard_paths(part: _Part) -> list[Path]:
    """The shards, in order, of the model of which `part` is a shard. Empty if `part` is the whole model."""
    count = max(1, part.integer("split.count", default=1))  # gguf-split leaves 0 in a file that it has merged
    name = _SHARD_NAME.fullmatch(part.path.name)
    number, named_count = (int(name["number"]), int(name["count"])) if name else (1, 1)
    if count != named_count or not 1 <= number <= count:
        raise WeightError(
            f"{part.path}: 'split.count' says {count} files, the name says file {number} of {named_count}; "
            "shards must keep their original names, <model>-00001-of-0000N.gguf"
        )
    if name is None or count == 1:
        return []
    paths = [part.path.with_name(f"{name['model']}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
    for path in paths:
        if not path.exists():
            raise WeightError(f"{path}: this shard of {count} is missing; all shards must be in one folder")
    return paths


def _join(shards: list[_Part]) -> dict[str, Weight]:
    """The tensors of all shards. Raises WeightError, naming the shard, for one of another model."""
    first = shards[0]
    weights: dict[str, Weight] = {}
    for index, shard in enumerate(shards):
        number = shard.integer("split.no")
        if number != index:
            raise WeightError(
                f"{shard.path}: 'split.no' must be {index} in a file of this name, not {number}"
            )
        for key in _MODEL_KEYS:
            if key in shard.metadata and shard.metadata[key] != first.metadata.get(key):
                raise WeightError(
                    f"{shard.path}: belongs to another model than {first.path.name}: {key!r} is "
                    f"{shard.metadata[key]!r:.80} here and {first.metadata.get(key)!r:.80} there"
                )
        for name in shard.weights.keys() & weights.keys():
            raise WeightError(f"{shard.path}: tensor {name!r} is in an earlier shard, too")
        weights |= shard.weights
    expected = first.integer("split.tensors.count", default=len(weights))
    if len(weights) != expected:
        raise WeightError(
            f"{first.path}: 'split.tensors.count' says {expected}, but the shards hold {len(weights)} tensors"
        )
    return weights
