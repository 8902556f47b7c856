"""Packed panels are read back here, in numpy, as csrc/kernels/formats.h describes them, and must hold the
numbers that octavo.weights.dequantize finds in the file."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import gguf
import ml_dtypes
import numpy as np
import pytest

from octavo.backends.native.library import load_library
from octavo.weights.dequantize import dequantize
from octavo.weights.formats import FORMATS

PANEL = 16
PLAIN: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
IQ4_NL_VALUES = np.array(gguf.quants.IQ4_NL.kvalues)


class Quants(NamedTuple):
    """What a panel of a quantized format has, as the table in formats.h says."""

    low_bits: int
    high_bits: int
    zero: int
    has_minimum: bool
    small_scale_bytes: int


QUANTIZED = {
    "Q4_0": Quants(4, 0, 8, False, 0),
    "Q4_1": Quants(4, 0, 0, True, 0),
    "Q5_0": Quants(4, 1, 16, False, 0),
    "Q5_1": Quants(4, 1, 0, True, 0),
    "Q8_0": Quants(8, 0, 128, False, 0),
    "Q2_K": Quants(2, 0, 0, True, 16),
    "Q3_K": Quants(2, 1, 4, False, 12),
    "Q4_K": Quants(4, 0, 0, True, 12),
    "Q5_K": Quants(4, 1, 0, True, 12),
    "Q6_K": Quants(4, 2, 32, False, 16),
    "IQ4_NL": Quants(4, 0, 0, False, 0),
}
ALL = [*PLAIN, *QUANTIZED]


def random_rows(name: str, n: int, k: int) -> np.ndarray:
    """Every bit at random: all quants, scales also denormal, infinite and NaN. Read-only and not aligned."""
    num_bytes = n * FORMATS[name].row_bytes(k)
    noise = np.random.default_rng(n * k + sum(name.encode())).bytes(num_bytes + 1)
    return np.frombuffer(noise, np.uint8, offset=1).reshape(n, -1)


def finite_rows(name: str, n: int, k: int) -> np.ndarray:
    """The same without infinities and NaN: no byte has the bits of the largest exponents."""
    return random_rows(name, n, k) & 0xBB


def numbers(name: str, rows: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):
        return dequantize(FORMATS[name], rows)


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    """NaN is NaN, whatever its payload."""
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    there = ~np.isnan(expected)
    np.testing.assert_array_equal(actual[there].view(np.uint32), expected[there].view(np.uint32))


def read_plane(plane: np.ndarray, bits: int) -> np.ndarray:
    """Fields of `bits`, uint8 [16, k]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields = plane.reshape(-1, 1, 64) >> shifts & (1 << bits) - 1
    return fields.reshape(-1, PANEL, 4).transpose(1, 0, 2).reshape(PANEL, -1)


def read_small_scales(name: str, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integer scales and minimums [16, super-blocks, sub-blocks] in uint8 [16, super-blocks, bytes]."""
    if name == "Q2_K":
        return raw & 15, raw >> 4
    if name == "Q6_K":
        return raw.view(np.int8), np.zeros(1)
    if name == "Q3_K":
        low = np.concatenate([raw[..., :8] & 15, raw[..., :8] >> 4], axis=-1)
        high = np.concatenate([raw[..., 8:] >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)
        return (low | high << 4).astype(np.int8) - np.int8(32), np.zeros(1)
    scales, minimums = gguf.quants.Q4_K.get_scale_min(raw.reshape(-1, 12))
    return scales.reshape(*raw.shape[:2], 8), minimums.reshape(*raw.shape[:2], 8)


def split_panel(name: str, panel: np.ndarray, k: int) -> list[np.ndarray]:
    """Low plane, high plane, small scales, float16 scales, and what is left up to a multiple of 64."""
    quants, num_blocks = QUANTIZED[name], k // FORMATS[name].block_size
    sizes = [
        k * PANEL * quants.low_bits // 8,
        k * PANEL * quants.high_bits // 8,
        num_blocks * quants.small_scale_bytes * PANEL,
        num_blocks * (1 + quants.has_minimum) * PANEL * 2,
    ]
    return np.split(panel, np.cumsum(sizes))


def read_quants(name: str, panel: np.ndarray, k: int) -> np.ndarray:
    """Quants counted from zero, int [16, k]."""
    low, high, *_ = split_panel(name, panel, k)
    quants = read_plane(low, QUANTIZED[name].low_bits).astype(np.int16)
    if len(high):
        quants |= read_plane(high, QUANTIZED[name].high_bits).astype(np.int16) << QUANTIZED[name].low_bits
    return quants - QUANTIZED[name].zero


def read_scales(name: str, panel: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Scale and minimum of each sub-block, float32 [16, blocks, sub-blocks]."""
    _, _, small, halves, _ = split_panel(name, panel, k)
    by_block = halves.view("<f2").reshape(k // FORMATS[name].block_size, -1, PANEL).astype(np.float32)
    scale, minimum = by_block[:, 0].T[..., None], by_block[:, -1].T[..., None]
    if not len(small):
        return scale, minimum
    raw = small.reshape(-1, QUANTIZED[name].small_scale_bytes, PANEL).transpose(2, 0, 1).copy()
    small_scales, small_minimums = read_small_scales(name, raw)
    return scale * small_scales.astype(np.float32), -(minimum * small_minimums.astype(np.float32))


def read_quantized(name: str, panel: np.ndarray, k: int) -> np.ndarray:
    quants = read_quants(name, panel, k)
    steps = IQ4_NL_VALUES[quants] if name == "IQ4_NL" else quants
    scale, minimum = read_scales(name, panel, k)
    values = scale[..., None] * steps.reshape(*scale.shape, -1).astype(np.float32)
    if QUANTIZED[name].has_minimum:
        values += minimum[..., None]
    return values.reshape(PANEL, k)


def read_panel(name: str, panel: np.ndarray, k: int) -> np.ndarray:
    """The numbers in a panel, float32 [16, k]."""
    if name in QUANTIZED:
        with np.errstate(invalid="ignore", over="ignore"):
            return read_quantized(name, panel, k)
    width = 2 if name == "BF16" else 1
    elements = panel.view(PLAIN[name]).reshape(-1, PANEL, width).transpose(1, 0, 2).reshape(PANEL, -1)
    assert not elements[:, k:].any()
    return elements[:, :k].astype(np.float32)


def bytes_of(memory: Any) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * memory.size).from_address(memory.address))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("n", "num_blocks"), [(16, 1), (32, 2), (37, 3)], ids=str)
def test_panels_hold_the_numbers_of_the_file(device: Any, name: str, n: int, num_blocks: int) -> None:
    k = num_blocks * (FORMATS[name].block_size if name in QUANTIZED else 19)
    rows = random_rows(name, n, k)
    panels = load_library().pack(device, name, rows, k)
    assert panels.shape == (-(-n // PANEL), load_library().panel_bytes(name, k))
    read = np.concatenate([read_panel(name, panel, k) for panel in panels])
    assert_same_bits(read[:n], numbers(name, rows))


@pytest.mark.parametrize("name", ALL)
def test_columns_without_a_row_are_zeros_and_their_scales_too(device: Any, name: str) -> None:
    k = 256
    (panel,) = load_library().pack(device, name, random_rows(name, 3, k), k)
    np.testing.assert_array_equal(read_panel(name, panel, k)[3:], 0)
    if name in QUANTIZED:
        np.testing.assert_array_equal(read_quants(name, panel, k)[3:], 0)


@pytest.mark.parametrize("name", ALL)
def test_the_number_of_threads_changes_nothing(devices: dict[int, Any], name: str) -> None:
    rows = random_rows(name, 100, 512)
    one, *others = [load_library().pack(device, name, rows, 512) for device in devices.values()]
    for other in others:
        np.testing.assert_array_equal(other, one)


def test_two_matrices_alternate_in_one_memory(device: Any) -> None:
    library, k, n, start = load_library(), 64, 40, 128
    gate, up = random_rows("Q4_0", n, k), random_rows("Q8_0", n, k)
    sizes = library.panel_bytes("Q4_0", k), library.panel_bytes("Q8_0", k)
    memory = library.Memory(start + 3 * sum(sizes) + 64)
    library.pack_into(device, "Q4_0", gate, k, memory, start, sum(sizes))
    library.pack_into(device, "Q8_0", up, k, memory, start + sizes[0], sum(sizes))
    expected = np.hstack([library.pack(device, "Q4_0", gate, k), library.pack(device, "Q8_0", up, k)])
    content = bytes_of(memory)
    np.testing.assert_array_equal(content[start:-64], expected.reshape(-1))
    assert not content[:start].any()
    assert not content[-64:].any()


def test_memory_begins_at_a_cache_line_and_is_zeroed() -> None:
    library = pytest.importorskip("octavo.backends.native._native")
    memory = library.Memory(1000)
    assert memory.address % 64 == 0
    assert memory.size == 1000
    assert not bytes_of(memory).any()


def test_every_format_is_tested_here() -> None:
    library = pytest.importorskip("octavo.backends.native._native")
    assert set(library.FORMATS) == set(ALL)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("make_rows", [random_rows, finite_rows])
def test_dequantized_rows_have_the_bits_of_the_reference(name: str, make_rows: Any) -> None:
    library = pytest.importorskip("octavo.backends.native._native")
    rows = make_rows(name, 200, 512)
    assert_same_bits(library.dequantize(name, rows, 512), numbers(name, rows))


@pytest.mark.parametrize("name", ["F16", "Q4_1"])
def test_every_number_of_16_bits_is_converted_exactly(name: str) -> None:
    """Q4_1 of all quants 0 is its minimum."""
    library = pytest.importorskip("octavo.backends.native._native")
    halves = np.arange(1 << 16, dtype="<u2")
    if name == "F16":
        rows, k = halves.view(np.uint8).reshape(1, -1), 1 << 16
    else:
        rows, k = np.zeros((1 << 16, 20), np.uint8), 32
        rows[:, 2:4] = halves.view(np.uint8).reshape(-1, 2)
    assert_same_bits(library.dequantize(name, rows, k), numbers(name, rows))


@pytest.mark.parametrize("name", ALL)
def test_rows_of_zero_bytes_are_zeros(name: str) -> None:
    library = pytest.importorskip("octavo.backends.native._native")
    rows = np.zeros((2, FORMATS[name].row_bytes(256)), np.uint8)
    assert_same_bits(library.dequantize(name, rows, 256), numbers(name, rows))


@pytest.mark.parametrize(
    ("name", "shape", "k", "said"),
    [
        ("Q4_2", (16, 18), 32, "does not read the format 'Q4_2'; it reads F32, F16, BF16, Q4_0"),
        ("Q4_0", (16, 18), 33, "k is 33; Q4_0 takes a multiple of 32"),
        ("Q4_K", (16, 18), 32, "k is 32; Q4_K takes a multiple of 256"),
        ("F32", (16, 0), 0, "k is 0; F32 takes a multiple of 1"),
        ("Q4_0", (16, 18), 64, r"shape \(16, 18\); a matrix of Q4_0 with k = 64 has .* 36 bytes"),
        ("Q4_0", (0, 18), 32, r"shape \(0, 18\); a matrix of Q4_0 .* at least one row"),
    ],
)
def test_what_is_not_a_matrix_is_refused(
    device: Any, name: str, shape: tuple[int, int], k: int, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        load_library().pack(device, name, np.zeros(shape, np.uint8), k)


@pytest.mark.parametrize(
    "rows",
    [np.zeros((2, 18), np.int8), np.zeros(18, np.uint8), np.zeros((4, 18), np.uint8)[::2]],
    ids=["of another type", "of one dimension", "not contiguous"],
)
def test_rows_that_would_have_to_be_copied_are_refused(device: Any, rows: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"rows is .* must be a contiguous numpy array of uint8"):
        load_library().pack(device, "Q4_0", rows, 32)


@pytest.mark.parametrize(
    ("offset", "panel_stride", "said"),
    [
        (32, 320, "offset is 32 .* multiples of 64"),
        (-64, 320, "offset is -64 .* not negative"),
        (0, 321, "panel_stride 321; both must be multiples of 64"),
        (0, 256, "panel_stride is 256; a panel of Q4_0 with k = 32 takes 320 bytes"),
        (64, 320, "3 panels of 320 bytes, every 320 from 64 on, do not fit into memory of 960 bytes"),
        (0, 384, "do not fit"),
        (1 << 20, 320, "do not fit"),
        (0, 1 << 62, "do not fit"),
        ((1 << 63) - 64, 320, "do not fit"),
    ],
)
def test_nothing_is_written_where_it_does_not_fit(
    device: Any, offset: int, panel_stride: int, said: str
) -> None:
    library = load_library()
    memory = library.Memory(960)
    rows = random_rows("Q4_0", 33, 32)
    library.pack_into(device, "Q4_0", rows, 32, memory, 0, 320)
    before = bytes_of(memory).copy()
    with pytest.raises(ValueError, match=said):
        library.pack_into(device, "Q4_0", rows ^ 0xFF, 32, memory, offset, panel_stride)
    np.testing.assert_array_equal(bytes_of(memory), before)
