import json
import struct
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

from octavo.errors import UnsupportedError, WeightError
from octavo.weights.safetensors import INDEX_NAME, SINGLE_NAME, SafetensorsFolder

MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)
VECTOR = np.arange(5, dtype=np.float16)


def build(header: object, data: bytes = b"") -> bytes:
    """A file with whatever header."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def open_single(folder: Path, content: bytes) -> SafetensorsFolder:
    (folder / SINGLE_NAME).write_bytes(content)
    return SafetensorsFolder(folder)


def refusal(folder: Path) -> str:
    """The message with which the folder is refused; it is one line."""
    with pytest.raises(WeightError) as caught:
        SafetensorsFolder(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def refusal_of_single(folder: Path, content: bytes) -> str:
    """The message with which the folder's only file is refused; it names the file."""
    (folder / SINGLE_NAME).write_bytes(content)
    message = refusal(folder)
    assert message.startswith(f"{folder / SINGLE_NAME}: ")
    return message


class TestOneFile:
    def test_tensors_come_back_with_their_names_shapes_and_values(self, tmp_path: Path) -> None:
        numbers = {
            "m": MATRIX,
            "v": VECTOR,
            "b": np.array([1e30, -2], ml_dtypes.bfloat16),
            "s": np.array(3.0),
        }
        formats = {"m": "F32", "v": "F16", "b": "BF16", "s": "F64"}
        save_file(numbers, tmp_path / SINGLE_NAME, {"format": "pt"})
        folder = SafetensorsFolder(tmp_path)
        assert set(folder.names()) == set(numbers)
        assert {name: folder.get(name).format.name for name in numbers} == formats
        for name, array in numbers.items():
            assert folder.get(name).shape == array.shape
            np.testing.assert_array_equal(folder.get(name).to_float32(), array.astype(np.float32))

    def test_tensors_are_rows_of_bytes_in_the_read_only_file(self, tmp_path: Path) -> None:
        experts = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
        weight = open_single(tmp_path, save({"experts": experts})).get("experts")
        assert weight.shape == (2, 3, 4)
        np.testing.assert_array_equal(weight.data, experts.reshape(6, 4).view(np.uint8))
        assert not weight.data.flags.owndata
        assert not weight.data.flags.writeable

    def test_a_missing_name_is_refused_naming_it(self, tmp_path: Path) -> None:
        folder = open_single(tmp_path, save({"m": MATRIX}))
        assert "w" not in folder
        with pytest.raises(WeightError, match="no tensor 'w'"):
            folder.get("w")

    def test_empty_tensors_are_allowed_but_no_shapes_beyond_the_file(self, tmp_path: Path) -> None:
        empty = save({"e": np.zeros((5, 0), np.float32)})
        assert open_single(tmp_path, empty).get("e").to_float32().shape == (5, 0)
        header = {"e": {"dtype": "F32", "shape": [1 << 63, 0], "data_offsets": [0, 0]}}
        (tmp_path / SINGLE_NAME).unlink()
        assert f"tensor 'e' has shape ({1 << 63}, 0)" in refusal_of_single(tmp_path, build(header))

    def test_a_dtype_that_has_no_decoder_opens_and_tells_but_is_refused_as_numbers(
        self, tmp_path: Path
    ) -> None:
        weight = open_single(tmp_path, save({"w": np.ones(4, ml_dtypes.float8_e4m3fn)})).get("w")
        assert weight.format.name == "F8_E4M3"
        with pytest.raises(UnsupportedError, match="F8_E4M3"):
            weight.to_float32()

    def test_no_file_is_refused(self, tmp_path: Path) -> None:
        assert "cannot be read: No such file" in refusal(tmp_path)


class TestDamage:
    FIELDS: Mapping[str, object] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}

    def test_truncation_at_every_single_byte_is_refused(self, tmp_path: Path) -> None:
        whole = save({"m": MATRIX, "v": VECTOR})
        for size in range(1, len(whole)):
            (tmp_path / SINGLE_NAME).unlink(missing_ok=True)
            assert f"the file has {size}" in refusal_of_single(tmp_path, whole[:size])

    @pytest.mark.parametrize(
        ("fields", "problem"),
        [
            (None, "needs dtype, shape and two data_offsets, not None"),
            ({}, "needs dtype, shape and two data_offsets"),
            ({"dtype": 7}, "needs dtype, shape and two data_offsets"),
            ({"shape": 2}, "needs dtype, shape and two data_offsets"),
            ({"data_offsets": [8]}, "needs dtype, shape and two data_offsets"),
            ({"dtype": "Q4_0"}, "has the unknown dtype 'Q4_0'; known: F64, F32"),
            ({"shape": [-2]}, "shape and data_offsets must be counts"),
            ({"shape": [2.0]}, "shape and data_offsets must be counts"),
            ({"shape": [True]}, "shape and data_offsets must be counts"),
            ({"data_offsets": [-8, 0]}, "shape and data_offsets must be counts"),
            ({"shape": [3]}, "needs 12 bytes at byte"),
            ({"shape": [1 << 62, 1 << 62]}, f"needs {1 << 126} bytes"),
            ({"data_offsets": [1 << 62, 8]}, "needs 8 bytes at byte"),
            ({"data_offsets": [0, 4]}, "F32 (2,), takes 8 bytes, but its data_offsets 0 to 4 span 4"),
        ],
        ids=str,
    )
    def test_an_entry_that_cannot_be_is_refused_naming_the_tensor(
        self, tmp_path: Path, fields: dict[str, object] | None, problem: str
    ) -> None:
        entry = fields and {**self.FIELDS, **fields}
        message = refusal_of_single(tmp_path, build({"t": entry}, bytes(8)))
        assert "tensor 't'" in message
        assert problem in message

    def test_two_tensors_in_one_place_are_refused(self, tmp_path: Path) -> None:
        message = refusal_of_single(tmp_path, build({"a": self.FIELDS, "b": self.FIELDS}, bytes(8)))
        assert "tensor 'b' begins at byte" in message

    @pytest.mark.parametrize(
        "header",
        [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b"9" * 5000, b'{"a":{},"a":{}}', b"null"],
        ids=["nothing", "open", "list", "no UTF-8", "deep", "long number", "twice the same", "null"],
    )
    def test_a_header_that_is_no_json_object_is_refused(self, tmp_path: Path, header: bytes) -> None:
        assert "the header" in refusal_of_single(tmp_path, build(header))

    def test_a_header_larger_than_the_format_allows_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / SINGLE_NAME
        path.write_bytes(struct.pack("<Q", 100_000_001))
        with path.open("r+b") as file:
            file.truncate(100_001_000)  # a hole: the file takes no room
        assert "header of 100000001 bytes is more than the 100000000 allowed" in refusal(tmp_path)

    @given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=4))
    @settings(max_examples=300)
    def test_changed_bytes_are_read_or_refused(
        self, tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
    ) -> None:
        folder = tmp_path_factory.mktemp("damaged")
        content = bytearray(save({"m": MATRIX, "v": VECTOR}))
        for position, byte in changes:
            content[position % len(content)] = byte
        try:
            source = open_single(folder, bytes(content))
        except WeightError:
            return
        assert all(source.get(name).nbytes <= len(content) for name in source.names())


class TestShards:
    def write(self, folder: Path, weight_map: object) -> None:
        save_file({"m": MATRIX}, folder / "one.safetensors")
        save_file({"v": VECTOR}, folder / "two.safetensors")
        (folder / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

    def test_tensors_of_all_shards_are_found_in_the_order_of_the_index(self, tmp_path: Path) -> None:
        self.write(tmp_path, {"v": "two.safetensors", "m": "one.safetensors"})
        folder = SafetensorsFolder(tmp_path)
        assert folder.names() == ["v", "m"]
        np.testing.assert_array_equal(folder.get("m").to_float32(), MATRIX)
        np.testing.assert_array_equal(folder.get("v").to_float32(), VECTOR)

    def test_a_missing_shard_is_named(self, tmp_path: Path) -> None:
        self.write(tmp_path, {"m": "one.safetensors", "v": "two.safetensors"})
        (tmp_path / "two.safetensors").unlink()
        assert "tensor 'v' should be in 'two.safetensors', which is not in the folder" in refusal(tmp_path)

    def test_a_tensor_that_its_shard_lacks_is_named(self, tmp_path: Path) -> None:
        self.write(tmp_path, {"m": "one.safetensors", "w": "two.safetensors"})
        assert "tensor 'w' should be in 'two.safetensors', which has no such tensor" in refusal(tmp_path)

    def test_a_truncated_shard_is_named(self, tmp_path: Path) -> None:
        self.write(tmp_path, {"m": "one.safetensors", "v": "two.safetensors"})
        shard = tmp_path / "two.safetensors"
        shard.write_bytes(shard.read_bytes()[:-1])
        assert refusal(tmp_path).startswith(f"{shard}: tensor 'v' of shape (5,) needs 10 bytes")

    @pytest.mark.parametrize(
        "name", ["../x.safetensors", "/etc/passwd", "", ".", "x\0y", "x" * 5000, 7, None]
    )
    def test_a_shard_outside_the_folder_is_refused(self, tmp_path: Path, name: object) -> None:
        (tmp_path / "x.safetensors").write_bytes(save({"m": MATRIX}))
        (tmp_path / "model").mkdir()
        self.write(tmp_path / "model", {"m": name})
        assert "tensor 'm' should be in" in refusal(tmp_path / "model")

    @pytest.mark.parametrize("weight_map", [None, [], "m"])
    def test_an_index_without_a_map_is_refused(self, tmp_path: Path, weight_map: object) -> None:
        self.write(tmp_path, weight_map)
        assert f"{INDEX_NAME}: 'weight_map' must map tensor names to file names" in refusal(tmp_path)
