"""GGUF files as they should be, and each way in which one can be wrong."""

import struct
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest

from octavo.errors import UnsupportedError, WeightError
from octavo.weights.formats import FORMATS
from octavo.weights.gguf import GGUFFile
from octavo.weights.gguf_metadata import MAX_HEADER_BYTES
from tests.weights.gguf_writer import Tensor, build_gguf

MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)
VECTOR = np.arange(5, dtype=np.float16)


def open_bytes(folder: Path, content: bytes, name: str = "model.gguf") -> GGUFFile:
    (folder / name).write_bytes(content)
    return GGUFFile.open(folder / name)


def refusal(folder: Path, content: bytes) -> str:
    """The message with which the file is refused; it names the file and is one line."""
    with pytest.raises(WeightError) as caught:
        dict(open_bytes(folder, content).metadata)
    message = str(caught.value)
    assert "model.gguf" in message
    assert "\n" not in message
    return message


class TestTensors:
    @pytest.mark.parametrize("version", [2, 3])
    def test_tensors_come_back_with_their_names_shapes_and_values(self, tmp_path: Path, version: int) -> None:
        file = open_bytes(tmp_path, build_gguf({}, {"m": MATRIX, "v": VECTOR}, version=version))
        assert file.names() == ["m", "v"]
        assert "m" in file
        assert "w" not in file
        assert file.get("m").shape == (3, 4)
        assert file.get("v").shape == (5,)
        assert file.get("v").format is FORMATS["F16"]
        np.testing.assert_array_equal(file.get("m").to_float32(), MATRIX)
        np.testing.assert_array_equal(file.get("v").to_float32(), VECTOR)

    def test_tensors_are_rows_of_bytes_in_the_read_only_file(self, tmp_path: Path) -> None:
        blocks = np.arange(2 * 3 * 36, dtype=np.uint8).reshape(2, 3, 36)[..., :34]
        weight = open_bytes(tmp_path, build_gguf({}, {"experts": ("Q8_0", blocks)})).get("experts")
        assert weight.shape == (2, 3, 32)
        assert weight.nbytes == blocks.size
        np.testing.assert_array_equal(weight.data, blocks.reshape(6, 34))
        assert not weight.data.flags.owndata
        assert not weight.data.flags.writeable

    def test_tensors_outlive_the_file_object(self, tmp_path: Path) -> None:
        weight = open_bytes(tmp_path, build_gguf({}, {"m": MATRIX})).get("m")
        np.testing.assert_array_equal(weight.to_float32(), MATRIX)

    def test_a_missing_name_is_refused_naming_it(self, tmp_path: Path) -> None:
        with pytest.raises(WeightError, match=r"model\.gguf: no tensor 'w'"):
            open_bytes(tmp_path, build_gguf({}, {"m": MATRIX})).get("w")

    def test_a_scalar_has_no_dimensions(self, tmp_path: Path) -> None:
        weight = open_bytes(tmp_path, build_gguf({}, {"s": np.array(3, np.float32)})).get("s")
        assert weight.shape == ()
        assert weight.data.shape == (1, 4)
        assert weight.to_float32() == 3

    def test_empty_tensors_are_allowed_but_no_shapes_beyond_the_file(self, tmp_path: Path) -> None:
        empty = build_gguf({}, {"e": np.zeros((5, 0), np.float32)})
        assert open_bytes(tmp_path, empty).get("e").to_float32().shape == (5, 0)
        assert "'e'" in refusal(tmp_path, empty.replace(struct.pack("<Q", 5), struct.pack("<Q", 1 << 63)))

    @pytest.mark.parametrize("name", ["IQ1_S", "TQ1_0"])
    def test_tensors_of_an_undecoded_type_open_but_are_refused_as_numbers(
        self, tmp_path: Path, name: str
    ) -> None:
        blocks = np.zeros((2, FORMATS[name].block_bytes), np.uint8)
        weight = open_bytes(tmp_path, build_gguf({}, {"w": (name, blocks)})).get("w")
        assert weight.format is FORMATS[name]
        with pytest.raises(UnsupportedError, match=f"{name} tensors; supported: F32"):
            weight.to_float32()

    def test_tensors_equal_those_that_the_gguf_package_wrote(self, tmp_path: Path) -> None:
        path = tmp_path / "model.gguf"
        numbers = np.random.default_rng(0).standard_normal((4, 64), np.float32)
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_array("tokenizer.ggml.tokens", ["a", "ä"])
        writer.add_tensor("f", numbers)
        quantized = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor("q", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

        file = GGUFFile.open(path)
        assert dict(file.metadata) == {"general.architecture": "llama", "tokenizer.ggml.tokens": ["a", "ä"]}
        np.testing.assert_array_equal(file.get("f").to_float32(), numbers)
        np.testing.assert_array_equal(file.get("q").data, quantized)


class TestLayout:
    @pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
    def test_the_alignment_key_is_honoured(self, tmp_path: Path, alignment: int) -> None:
        file = open_bytes(tmp_path, build_gguf({}, {"v": VECTOR, "m": MATRIX}, alignment=alignment))
        np.testing.assert_array_equal(file.get("m").to_float32(), MATRIX)

    def test_padding_after_the_last_tensor_may_be_missing(self, tmp_path: Path) -> None:
        content = build_gguf({}, {"m": MATRIX, "v": VECTOR}, alignment=64, final_padding=False)
        np.testing.assert_array_equal(open_bytes(tmp_path, content).get("v").to_float32(), VECTOR)

    def test_data_may_lie_in_another_order_than_the_entries(self, tmp_path: Path) -> None:
        file = open_bytes(tmp_path, build_gguf({}, {"m": MATRIX, "v": VECTOR}, data_order=["v", "m"]))
        assert file.names() == ["m", "v"]
        np.testing.assert_array_equal(file.get("m").to_float32(), MATRIX)
        np.testing.assert_array_equal(file.get("v").to_float32(), VECTOR)

    @pytest.mark.parametrize("alignment", [0, 3, "32", True])
    def test_an_alignment_that_is_none_is_refused(self, tmp_path: Path, alignment: object) -> None:
        content = build_gguf({"general.alignment": alignment}, {"m": MATRIX})
        assert f"'general.alignment' must hold a power of two, not {alignment!r}" in refusal(
            tmp_path, content
        )

    def test_a_tensor_off_the_alignment_is_refused(self, tmp_path: Path) -> None:
        content = build_gguf({"general.alignment": 64}, {"v": VECTOR, "m": MATRIX})
        assert "tensor 'm' has offset 32, not aligned to 64" in refusal(tmp_path, content)


class TestMetadata:
    @pytest.mark.parametrize(
        "value",
        [
            *("text", "", "ä\0🙂", True, False, 7, 0.5),
            *(np.uint8(255), np.int8(-128), np.uint16(65535), np.int16(-5), np.int32(-(2**31))),
            *(np.uint64(2**64 - 1), np.int64(-(2**63)), np.float64(1e300), np.float32(0.25)),
            *([], [1, 2, 3], ["a", "", "ü"], [True, False], [[1, 2], [3]], [["a"], [], ["b", "c"]]),
        ],
        ids=repr,
    )
    def test_every_type_comes_back_as_plain_python(self, tmp_path: Path, value: object) -> None:
        file = open_bytes(tmp_path, build_gguf({"before": 1, "key": value, "after": "z"}, {"m": MATRIX}))
        assert dict(file.metadata) == {"before": 1, "key": value, "after": "z"}
        assert type(file.metadata["key"]) in (str, bool, int, float, list)

    def test_metadata_are_a_mapping_in_file_order(self, tmp_path: Path) -> None:
        metadata = open_bytes(tmp_path, build_gguf({"b": 1, "a": [2]}, {})).metadata
        assert isinstance(metadata, Mapping)
        assert list(metadata) == ["b", "a"]
        assert len(metadata) == 2
        assert metadata.get("c") is None

    def test_an_array_is_decoded_once(self, tmp_path: Path) -> None:
        metadata = open_bytes(tmp_path, build_gguf({"tokens": ["a", "b"]}, {})).metadata
        assert metadata["tokens"] is metadata["tokens"]

    def test_arrays_may_be_nested_four_deep_and_no_deeper(self, tmp_path: Path) -> None:
        assert open_bytes(tmp_path, build_gguf({"k": [[[[1]]]]}, {})).metadata["k"] == [[[[1]]]]
        assert "'k' nests arrays more than 4 deep" in refusal(tmp_path, build_gguf({"k": [[[[[1]]]]]}, {}))

    def test_a_key_that_occurs_twice_is_refused(self, tmp_path: Path) -> None:
        content = build_gguf({"key1": 1, "key2": 2}, {}).replace(b"key2", b"key1")
        assert "'key1' occurs twice" in refusal(tmp_path, content)

    @pytest.mark.parametrize(
        ("metadata", "what"),
        [
            ({"XX": 1}, "metadata key 1 of 1"),
            ({"k": "XX"}, "metadata key 'k'"),
            ({"k": ["a", "XX"]}, "metadata key 'k'"),
        ],
    )
    def test_text_that_is_not_utf8_is_refused(
        self, tmp_path: Path, metadata: Mapping[str, object], what: str
    ) -> None:
        message = refusal(tmp_path, build_gguf(metadata, {}).replace(b"XX", b"\xff\xfe"))
        assert f"{what} is not UTF-8" in message

    @pytest.mark.parametrize("value_type", [13, 9999])
    def test_an_unknown_value_type_is_refused(self, tmp_path: Path, value_type: int) -> None:
        content = build_gguf({"k": 5}, {})
        content = content.replace(struct.pack("<II", 4, 5), struct.pack("<II", value_type, 5))
        assert f"'k' has the unknown value type {value_type}" in refusal(tmp_path, content)


class TestCountsAndSizes:
    """Each number of the header made absurd: refused at once, without reading or allocating by it."""

    HUGE = struct.pack("<Q", 1 << 62)

    def test_an_absurd_number_of_tensors_is_refused(self, tmp_path: Path) -> None:
        content = bytearray(build_gguf({}, {"m": MATRIX}))
        content[8:16] = self.HUGE
        assert f"the list of {1 << 62} tensors needs" in refusal(tmp_path, bytes(content))

    def test_an_absurd_number_of_keys_is_refused(self, tmp_path: Path) -> None:
        content = bytearray(build_gguf({"k": 1}, {}))
        content[16:24] = self.HUGE
        assert f"metadata of {1 << 62} keys needs" in refusal(tmp_path, bytes(content))

    def test_an_absurd_length_of_a_string_is_refused(self, tmp_path: Path) -> None:
        content = build_gguf({"key": "abcdefg"}, {})
        content = content.replace(struct.pack("<Q", 7), self.HUGE)
        assert f"metadata key 'key' needs {1 << 62} bytes" in refusal(tmp_path, content)

    def test_an_absurd_length_of_a_string_in_an_array_is_refused(self, tmp_path: Path) -> None:
        content = build_gguf({"key": ["abcdefg", ""]}, {}).replace(struct.pack("<Q", 7), self.HUGE)
        assert f"metadata key 'key' needs {1 << 62} bytes" in refusal(tmp_path, content)

    @pytest.mark.parametrize("array", [[1] * 5, ["a"] * 5, [[1]] * 5], ids=["numbers", "strings", "arrays"])
    def test_an_absurd_count_of_an_array_is_refused(self, tmp_path: Path, array: list[object]) -> None:
        content = build_gguf({"key": array}, {}).replace(struct.pack("<Q", 5), self.HUGE)
        assert f"metadata key 'key', an array of {1 << 62} elements, needs" in refusal(tmp_path, content)

    def test_dimensions_whose_product_overflows_are_refused(self, tmp_path: Path) -> None:
        content = build_gguf({}, {"m": MATRIX}).replace(
            struct.pack("<QQ", 4, 3), struct.pack("<QQ", 1 << 32, 1 << 32)
        )
        assert f"tensor 'm' of shape ({1 << 32}, {1 << 32}) needs {1 << 66} bytes" in refusal(
            tmp_path, content
        )

    def test_more_dimensions_than_ggml_has_are_refused(self, tmp_path: Path) -> None:
        content = build_gguf({}, {"m": MATRIX})
        content = content.replace(struct.pack("<IQQ", 2, 4, 3), struct.pack("<IQQ", 5, 4, 3))
        assert "tensor 'm' has 5 dimensions, more than 4" in refusal(tmp_path, content)

    def test_an_offset_beyond_the_file_is_refused(self, tmp_path: Path) -> None:
        content = build_gguf({}, {"v": VECTOR, "m": MATRIX})
        content = content.replace(struct.pack("<IQ", 0, 32), struct.pack("<IQ", 0, (1 << 64) - 32))
        assert "tensor 'm' of shape (3, 4) needs 48 bytes at byte" in refusal(tmp_path, content)

    def test_an_unknown_type_of_a_tensor_is_refused(self, tmp_path: Path) -> None:
        content = build_gguf({}, {"v": VECTOR, "m": MATRIX})
        content = content.replace(struct.pack("<IQ", 0, 32), struct.pack("<IQ", 4, 32))
        assert "tensor 'm': unknown ggml tensor type 4" in refusal(tmp_path, content)

    def test_a_row_that_is_no_whole_number_of_blocks_is_refused(self, tmp_path: Path) -> None:
        content = build_gguf({}, {"m": ("Q8_0", np.zeros((3, 34), np.uint8))})
        content = content.replace(struct.pack("<QQ", 32, 3), struct.pack("<QQ", 33, 3))
        assert "tensor 'm': a row of 33 elements cannot be Q8_0" in refusal(tmp_path, content)

    def test_a_header_larger_than_any_real_one_is_refused(self, tmp_path: Path) -> None:
        size = MAX_HEADER_BYTES + 1
        start = build_gguf({"key": "abcdefg"}, {}).replace(struct.pack("<Q", 7), struct.pack("<Q", size))
        path = tmp_path / "model.gguf"
        path.write_bytes(start)
        with path.open("r+b") as file:
            file.truncate(size + 1000)  # a hole: the file takes no room
        with pytest.raises(
            WeightError, match=f"'key' ends beyond the {MAX_HEADER_BYTES} bytes that a header may take"
        ):
            GGUFFile.open(path)


class TestOtherFiles:
    def test_two_tensors_of_one_name_are_refused(self, tmp_path: Path) -> None:
        content = build_gguf({}, {"one": MATRIX, "two": MATRIX}).replace(b"two", b"one")
        assert "two tensors are named 'one'" in refusal(tmp_path, content)

    def test_two_tensors_in_one_place_are_refused(self, tmp_path: Path) -> None:
        content = build_gguf({}, {"m": MATRIX, "v": VECTOR}).replace(
            struct.pack("<IQ", 1, 64), struct.pack("<IQ", 1, 32)
        )
        assert "tensor 'v' begins at byte" in refusal(tmp_path, content)

    def test_a_big_endian_file_is_refused_as_such(self, tmp_path: Path) -> None:
        assert "big-endian" in refusal(tmp_path, b"GGUF" + struct.pack(">IQQ", 3, 0, 0))

    @pytest.mark.parametrize("version", [1, 4])
    def test_another_version_is_refused_with_those_that_can_be_read(
        self, tmp_path: Path, version: int
    ) -> None:
        message = refusal(tmp_path, build_gguf({}, {}, version=version))
        assert f"has GGUF version {version}; only (2, 3) can be read" in message

    def test_another_kind_of_file_is_refused_with_how_it_begins(self, tmp_path: Path) -> None:
        assert "this is not a GGUF file: it begins with b'PK" in refusal(tmp_path, b"PK\x03\x04 and so on")

    def test_an_empty_file_is_refused(self, tmp_path: Path) -> None:
        assert "cannot be read" in refusal(tmp_path, b"")

    def test_a_path_to_nothing_is_refused_with_the_reason(self, tmp_path: Path) -> None:
        with pytest.raises(WeightError, match=r"none\.gguf: cannot be read: No such file"):
            GGUFFile.open(tmp_path / "none.gguf")


class TestTruncation:
    TENSORS: Mapping[str, Tensor] = {"m": MATRIX, "q": ("Q4_0", np.ones((2, 36), np.uint8))}
    METADATA: Mapping[str, object] = {
        "general.architecture": "llama",
        "tokens": ["a", "bc"],
        "scores": [0.5, 1.5],
    }

    def test_truncation_at_every_single_byte_is_refused_with_what_is_needed_and_what_is_there(
        self, tmp_path: Path
    ) -> None:
        whole = build_gguf(self.METADATA, self.TENSORS, final_padding=False)
        for size in range(1, len(whole)):
            message = refusal(tmp_path, whole[:size])
            assert "needs" in message
            assert f"the file has {size}" in message
        open_bytes(tmp_path, whole)

    def test_truncated_data_are_refused_naming_the_tensor_and_both_sizes(self, tmp_path: Path) -> None:
        whole = build_gguf(self.METADATA, self.TENSORS, final_padding=False)
        start = len(whole) - 72
        expected = (
            f"tensor 'q' of shape (2, 64) needs 72 bytes at byte {start}, the file has {len(whole) - 1}"
        )
        assert expected in refusal(tmp_path, whole[:-1])
