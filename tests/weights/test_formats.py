import gguf
import pytest

from octavo.errors import WeightError
from octavo.weights.formats import FORMATS, format_named, format_of_ggml_type


@pytest.mark.parametrize("ggml_type", gguf.GGML_QUANT_SIZES, ids=lambda ggml_type: ggml_type.name)
def test_every_ggml_type_has_the_number_and_the_block_layout_that_ggml_gives_it(
    ggml_type: gguf.GGMLQuantizationType,
) -> None:
    format = format_of_ggml_type(int(ggml_type))
    assert (format.name, format.ggml_type) == (ggml_type.name, int(ggml_type))
    assert (format.block_size, format.block_bytes) == gguf.GGML_QUANT_SIZES[ggml_type]


def test_every_format_is_found_by_its_name() -> None:
    assert [format_named(name) for name in FORMATS] == list(FORMATS.values())
    assert [format.name for format in FORMATS.values()] == list(FORMATS)


@pytest.mark.parametrize("number", [-1, 4, 5, 31, 33, 36, 38, 1 << 31])
def test_a_number_that_has_no_format_is_refused_by_name(number: int) -> None:
    with pytest.raises(WeightError, match=f"type {number};"):
        format_of_ggml_type(number)


def test_a_name_that_has_no_format_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(WeightError, match="'Q4_2'; known: F32, F16, Q4_0"):
        format_named("Q4_2")


def test_a_row_takes_its_blocks() -> None:
    assert FORMATS["F16"].row_bytes(7) == 14
    assert FORMATS["Q4_K"].row_bytes(512) == 2 * 144
    assert FORMATS["Q8_0"].row_bytes(0) == 0


def test_a_row_of_broken_blocks_is_refused_naming_its_size_and_the_blocks() -> None:
    with pytest.raises(
        WeightError, match="row of 576 elements cannot be Q4_K, which takes a multiple of 256"
    ):
        FORMATS["Q4_K"].row_bytes(576)
