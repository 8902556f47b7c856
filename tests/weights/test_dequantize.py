import gguf
import ml_dtypes
import numpy as np
import pytest

from octavo.errors import UnsupportedError, WeightError
from octavo.weights.dequantize import SUPPORTED_FORMATS, dequantize
from octavo.weights.formats import FORMATS

DTYPES = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F64": np.float64,
    "I8": np.int8,
    "I16": np.int16,
    "I32": np.int32,
    "I64": np.int64,
}
QUANTIZED = [name for name in SUPPORTED_FORMATS if name not in DTYPES]


def random_blocks(name: str, rows: int, blocks: int) -> np.ndarray:
    """Every bit at random, so every code, every scale, and some scales that are infinite or not a number."""
    generator = np.random.default_rng(sum(name.encode()))
    return generator.integers(0, 256, (rows, blocks * FORMATS[name].block_bytes), dtype=np.uint8)


def test_the_formats_that_models_are_published_in_are_supported() -> None:
    assert set(QUANTIZED) == {
        *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "IQ4_XS"),
        *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    }


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (3, 5), (70, 40)], ids=str)
def test_quantized_blocks_are_the_same_bits_as_ggml_makes_of_them(name: str, rows: int, blocks: int) -> None:
    data = random_blocks(name, rows, blocks)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name])
        values = dequantize(FORMATS[name], data)
    assert values.dtype == np.float32
    assert values.shape == (rows, blocks * FORMATS[name].block_size)
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("name", DTYPES)
def test_plain_numbers_keep_their_values(name: str) -> None:
    numbers = np.array([[0, 1, -2], [100, -128, 127]], DTYPES[name])
    np.testing.assert_array_equal(
        dequantize(FORMATS[name], numbers.view(np.uint8)), numbers.astype(np.float32)
    )


def test_bf16_keeps_numbers_beyond_the_range_of_f16() -> None:
    numbers = np.array([[1e30, -1e30]], ml_dtypes.bfloat16)
    assert np.isfinite(dequantize(FORMATS["BF16"], numbers.view(np.uint8))).all()


def test_rows_that_are_not_next_to_each_other_are_read_where_they_are() -> None:
    data = random_blocks("Q8_0", 6, 4)
    with np.errstate(invalid="ignore", over="ignore"):
        np.testing.assert_array_equal(
            dequantize(FORMATS["Q8_0"], data[::2]), dequantize(FORMATS["Q8_0"], data)[::2]
        )


def test_no_rows_are_no_values() -> None:
    assert dequantize(FORMATS["Q4_K"], np.empty((0, 288), np.uint8)).shape == (0, 512)


@pytest.mark.parametrize("name", ["IQ1_S", "TQ1_0", "MXFP4", "F8_E4M3"])
def test_a_format_without_a_decoder_is_refused_in_one_line_with_those_that_have_one(name: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        dequantize(FORMATS[name], np.zeros((1, FORMATS[name].block_bytes), np.uint8))
    message = str(caught.value)
    assert name in message
    assert "\n" not in message
    assert all(supported in message for supported in SUPPORTED_FORMATS)


@pytest.mark.parametrize(
    "data",
    [np.zeros((1, 33), np.uint8), np.zeros(34, np.uint8), np.zeros((1, 34), np.int8)],
    ids=["part of a block", "no rows", "wrong dtype"],
)
def test_data_that_is_not_rows_of_whole_blocks_is_refused(data: np.ndarray) -> None:
    with pytest.raises(WeightError, match=r"Q8_0 data must be uint8 \[rows, a multiple of 34\]"):
        dequantize(FORMATS["Q8_0"], data)
