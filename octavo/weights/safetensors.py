"""Hugging Face folders: `model.safetensors`, or shards listed by `model.safetensors.index.json`.

Source: the safetensors format (README of huggingface/safetensors) and the index of transformers' sharded
checkpoints. Layout of a file, little-endian: header length u64 | header, JSON | data of the tensors. The
header maps each tensor's name to `dtype`, row-major `shape` and `data_offsets`, begin and end in bytes from
the start of the data.

The `safetensors` package is not used to read: it copies tensors out of the file, and a Weight must stay a
view of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from octavo.weights.formats import format_named
from octavo.weights.mapped_file import MappedFile, TensorEntry
from octavo.weights.weight import Weight
from octavo.weights.weight_table import WeightTable

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

# The format's own bound on its header. It also bounds what a hostile header can cost.
_MAX_JSON_BYTES = 100_000_000

# A subset of the names in `formats.py`: those that both file types use, and those without a ggml type.
_DTYPES = (
    *("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0"),
    *("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"),
)


class SafetensorsFolder(WeightTable):
    """The tensors of a Hugging Face folder, as views of the mapped files, in the index's order."""

    def __init__(self, path: Path) -> None:
        """Map and check every file of the folder `path`.

        Raises WeightError, naming the file and the tensor, when a shard is missing or truncated, lacks a
        tensor that the index promises, or is malformed.
        """
        single, index = path / SINGLE_NAME, path / INDEX_NAME
        is_sharded = index.exists() and not single.exists()  # as transformers chooses
        super().__init__(path, _read_shards(index) if is_sharded else _read_file(single))


def _read_shards(index: Path) -> dict[str, Weight]:
    file = MappedFile(index)
    weight_map = _read_json(file, 0, file.size).get("weight_map")
    if not isinstance(weight_map, dict):
        raise file.error(f"'weight_map' must map tensor names to file names, not be {weight_map!r:.80}")
    present = {path.name for path in index.parent.iterdir()}
    shards: dict[str, dict[str, Weight]] = {}
    weights: dict[str, Weight] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or shard not in present:
            raise file.error(f"tensor {name!r} should be in {shard!r:.80}, which is not in the folder")
        if shard not in shards:
            shards[shard] = _read_file(index.parent / shard)
        if name not in shards[shard]:
            raise file.error(f"tensor {name!r} should be in {shard!r}, which has no such tensor")
        weights[name] = shards[shard][name]
    return weights


def _read_file(path: Path) -> dict[str, Weight]:
    file = MappedFile(path)
    if file.size < 8:
        raise file.truncated("the length of the header", 8, 0)
    data_start = 8 + int.from_bytes(file.buffer[:8], "little")
    header = _read_json(file, 8, data_start)
    header.pop("__metadata__", None)
    weights = file.weights((_read_entry(file, name, fields) for name, fields in header.items()), data_start)
    for name, weight in weights.items():
        begin, end = header[name]["data_offsets"]
        if end - begin != weight.nbytes:
            raise file.error(
                f"tensor {name!r}, {weight.format.name} {weight.shape}, takes {weight.nbytes} bytes, "
                f"but its data_offsets {begin} to {end} span {end - begin}"
            )
    return weights


def _read_entry(file: MappedFile, name: str, fields: object) -> TensorEntry:
    match fields:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [offset, end]}:
            pass
        case _:
            raise file.error(f"tensor {name!r} needs dtype, shape and two data_offsets, not {fields!r:.80}")
    if not all(type(number) is int and number >= 0 for number in (*shape, offset, end)):
        raise file.error(f"tensor {name!r}: shape and data_offsets must be counts, not {fields!r:.80}")
    if dtype not in _DTYPES:
        raise file.error(f"tensor {name!r} has the unknown dtype {dtype!r:.80}; known: {', '.join(_DTYPES)}")
    return TensorEntry(name, tuple(shape), format_named(dtype), offset)


def _read_json(file: MappedFile, start: int, end: int) -> dict[str, Any]:
    """The JSON object in bytes `start` to `end` of the file."""
    if end > file.size:
        raise file.truncated("the header", end - start, start)
    if end - start > _MAX_JSON_BYTES:
        raise file.error(f"a header of {end - start} bytes is more than the {_MAX_JSON_BYTES} allowed")
    try:
        value = json.loads(file.buffer[start:end].decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise file.error(f"the header is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise file.error(f"the header must be a JSON object, not {value!r:.80}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys may not repeat, as a dict."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return result
