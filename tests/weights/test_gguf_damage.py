"""Whatever is done to the bytes of a GGUF file, it opens or it is refused with a WeightError."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import WeightError
from octavo.weights.dequantize import SUPPORTED_FORMATS
from octavo.weights.gguf import GGUFFile
from tests.weights.gguf_writer import build_gguf

WHOLE = build_gguf(
    {
        "general.architecture": "llama",
        "scalar": np.uint64(7),
        "flag": True,
        "tokens": ["a", "", "ä", "token"],
        "scores": [0.5, 1.5],
        "types": np.arange(4, dtype=np.int8),
        "nested": [["x"], ["y", "z"]],
        "split.count": np.uint16(1),
    },
    {
        "matrix": np.arange(12, dtype=np.float32).reshape(3, 4),
        "blocks": ("Q4_K", np.arange(2 * 144, dtype=np.uint8).reshape(2, 144)),
        "vector": np.arange(5, dtype=np.float16),
    },
    alignment=32,
)
# The data behind the header carry no lengths: damage there is just another number.
HEADER_SIZE = WHOLE.index(np.arange(12, dtype=np.float32).tobytes())

# Numbers on which a reader trips, in both widths that a header has.
EXTREMES = [
    struct.pack(code, number)
    for code, bits in (("<I", 32), ("<Q", 64))
    for number in (
        0,
        1,
        8,
        9,
        255,
        1 << 31,
        (1 << bits - 1) - 1,
        1 << bits - 1,
        (1 << bits) - 1,
        (1 << bits) - 32,
    )
]
positions = st.integers(0, HEADER_SIZE - 1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "model.gguf"


def opens_or_is_refused(path: Path, content: bytes) -> None:
    """Read everything there is to read."""
    path.unlink(missing_ok=True)  # a file that may still be mapped must not be written to
    path.write_bytes(content)
    refused = ""
    try:
        file = GGUFFile.open(path)
        dict(file.metadata)
    except WeightError as error:
        refused = str(error)
    if refused:
        assert str(path) in refused
        return
    for name in file.names():
        weight = file.get(name)
        assert weight.nbytes <= len(content)
        if weight.format.name in SUPPORTED_FORMATS:
            with np.errstate(invalid="ignore", over="ignore"):
                assert weight.to_float32().shape == weight.shape


def test_the_undamaged_file_opens(path: Path) -> None:
    opens_or_is_refused(path, WHOLE)
    assert GGUFFile.open(path).names() == ["matrix", "blocks", "vector"]


@given(st.lists(st.tuples(positions, st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=300)
def test_a_file_with_changed_bytes_opens_or_is_refused(path: Path, changes: list[tuple[int, int]]) -> None:
    content = bytearray(WHOLE)
    for position, byte in changes:
        content[position] = byte
    opens_or_is_refused(path, bytes(content))


@given(positions, st.sampled_from(EXTREMES))
@settings(max_examples=300)
def test_a_file_with_an_extreme_number_opens_or_is_refused(path: Path, position: int, number: bytes) -> None:
    opens_or_is_refused(path, WHOLE[:position] + number + WHOLE[position + len(number) :])


@given(positions, st.integers(0, 40), st.binary(max_size=40))
@settings(max_examples=200)
def test_a_file_with_bytes_cut_out_or_put_in_opens_or_is_refused(
    path: Path, position: int, num_cut: int, inserted: bytes
) -> None:
    opens_or_is_refused(path, WHOLE[:position] + inserted + WHOLE[position + num_cut :])


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_noise_behind_a_valid_start_opens_or_is_refused(path: Path, noise: bytes) -> None:
    opens_or_is_refused(path, WHOLE[:8] + struct.pack("<QQ", 1, 2) + noise)
