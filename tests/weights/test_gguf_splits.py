"""Models in several GGUF files, and each way in which the files can fail to be one model."""

import re
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from octavo.errors import WeightError
from octavo.weights.gguf import GGUFFile
from tests.weights.gguf_writer import build_gguf

MODEL_KEYS: Mapping[str, object] = {"general.architecture": "llama", "general.name": "one"}


def shard(index: int, keys: Mapping[str, object]) -> bytes:
    """Shard `index` of 3: one tensor, named by the index; metadata are the split keys and `keys`."""
    split = {"split.no": np.uint16(index), "split.count": np.uint16(3), "split.tensors.count": np.int32(3)}
    return build_gguf(split | keys, {f"t{index}": np.full(4, index, np.float32)})


def write_shards(folder: Path) -> list[Path]:
    """A model in three shards, made as gguf-split makes them: only the first has the model's keys."""
    paths = [folder / f"model-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    for index, path in enumerate(paths):
        path.write_bytes(shard(index, MODEL_KEYS if index == 0 else {}))
    return paths


def refusal(path: Path) -> str:
    """The message with which the model that `path` is a part of is refused."""
    with pytest.raises(WeightError) as caught:
        GGUFFile.open(path)
    return str(caught.value)


@pytest.mark.parametrize("start", [0, 1, 2])
def test_all_shards_are_found_from_any_of_them(tmp_path: Path, start: int) -> None:
    file = GGUFFile.open(write_shards(tmp_path)[start])
    assert file.names() == ["t0", "t1", "t2"]
    assert [file.get(name).to_float32()[0] for name in file.names()] == [0, 1, 2]
    assert file.metadata["general.architecture"] == "llama"


@pytest.mark.parametrize("missing", [0, 2])
def test_a_missing_shard_is_named(tmp_path: Path, missing: int) -> None:
    paths = write_shards(tmp_path)
    paths[missing].unlink()
    assert refusal(paths[1]).startswith(f"{paths[missing]}: this shard of 3 is missing")


def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    paths = write_shards(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-20])
    assert refusal(paths[0]).startswith(f"{paths[2]}: tensor 't2' of shape (4,) needs 16 bytes")


def test_two_shards_of_exchanged_names_are_refused(tmp_path: Path) -> None:
    paths = write_shards(tmp_path)
    paths[1].rename(tmp_path / "swap")
    paths[2].rename(paths[1])
    (tmp_path / "swap").rename(paths[2])
    assert refusal(paths[0]).startswith(f"{paths[1]}: 'split.no' must be 1 in a file of this name, not 2")


def test_a_shard_without_its_number_is_refused(tmp_path: Path) -> None:
    paths = write_shards(tmp_path)
    paths[1].write_bytes(shard(1, {}).replace(b"split.no", b"split.xx"))
    assert refusal(paths[0]).startswith(f"{paths[1]}: metadata key 'split.no' must hold an integer")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("split.count", np.uint16(2)),
        ("split.tensors.count", np.int32(4)),
        ("general.architecture", "qwen2"),
        ("general.name", "another"),
    ],
)
def test_a_shard_of_another_model_is_named_with_the_key_that_tells(
    tmp_path: Path, key: str, value: object
) -> None:
    paths = write_shards(tmp_path)
    paths[2].write_bytes(shard(2, {key: value}))
    message = refusal(paths[0])
    assert message.startswith(f"{paths[2]}: belongs to another model than {paths[0].name}: '{key}'")


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    paths = write_shards(tmp_path)
    paths[2].write_bytes(shard(2, {}).replace(b"t2", b"t0"))
    assert refusal(paths[0]) == f"{paths[2]}: tensor 't0' is in an earlier shard, too"


def test_fewer_tensors_than_announced_are_refused(tmp_path: Path) -> None:
    paths = write_shards(tmp_path)
    for path in paths:
        path.write_bytes(path.read_bytes().replace(struct.pack("<Ii", 5, 3), struct.pack("<Ii", 5, 4)))
    assert "'split.tensors.count' says 4, but the shards hold 3 tensors" in refusal(paths[0])


@pytest.mark.parametrize("name", ["m.gguf", "m-00001-of-00002.gguf", "m-00000-of-00003.gguf"])
def test_a_renamed_shard_is_refused_with_the_kind_of_name_it_needs(tmp_path: Path, name: str) -> None:
    message = refusal(write_shards(tmp_path)[0].rename(tmp_path / name))
    assert re.search("'split.count' says 3 files, the name says .*; .*<model>-00001-of-0000N.gguf", message)


def test_a_whole_model_under_the_name_of_a_shard_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model-00001-of-00002.gguf"
    path.write_bytes(build_gguf({}, {"t": np.zeros(4, np.float32)}))
    assert "'split.count' says 1 files, the name says file 1 of 2" in refusal(path)


@pytest.mark.parametrize("count", [0, 1])
def test_merged_shards_and_a_single_shard_are_whole_models(tmp_path: Path, count: int) -> None:
    keys = {"split.no": np.uint16(0), "split.count": np.uint16(count), "split.tensors.count": np.int32(1)}
    path = tmp_path / "model.gguf"
    path.write_bytes(build_gguf(keys, {"t": np.zeros(4, np.float32)}))
    assert GGUFFile.open(path).names() == ["t"]


def test_a_count_that_is_no_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(build_gguf({"split.count": "three"}, {}))
    assert "'split.count' must hold an integer, not 'three'" in refusal(path)
