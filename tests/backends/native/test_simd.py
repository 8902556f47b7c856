"""Every operation of csrc/kernels/simd.h, in each instruction set, against what numpy says it is."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.native import instruction_sets

HERE = Path(__file__).parent
COMPILER = shutil.which(os.environ.get("CXX", "c++"))
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
FLAGS = {
    "portable": [],
    "avx2": AVX2,
    "avx512": AVX512,
    "avx512_bf16": [*AVX512, "-mavx512bf16", "-mavx512vnni"],
}
TABLE = np.array([7, 0, 255, 31, 4, 128, 127, 9, 80, 1, 2, 200, 33, 64, 16, 250], np.uint8)
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1.5,
    2.5,
    -2.5,
    np.inf,
    -np.inf,
    np.nan,
    1e-45,
    1e-38,
    3e38,
    -3e38,
    8388609.0,
]

Operation = Callable[..., np.ndarray]


@pytest.fixture(scope="module", params=instruction_sets(FLAGS))
def simd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Operation:
    """Runs an operation of one instruction set: simd(name, a, b, c, dtype) → [n, elements of 64 bytes]."""
    if COMPILER is None:
        pytest.skip("no C++ compiler: set CXX")
    if request.param is None:
        pytest.skip("the native extension is not built")
    program = tmp_path_factory.mktemp("simd") / request.param
    command = [COMPILER, "-std=c++17", "-O2", "-ffp-contract=off", "-Wno-psabi", *FLAGS[request.param]]
    command += [f"-I{HERE.parents[2] / 'csrc'}", f"-DOCTAVO_ISA={request.param}", f"-o{program}"]
    subprocess.run([*command, HERE / "simd_test.cpp"], check=True)

    def run(name: str, *operands: np.ndarray, dtype: np.typing.DTypeLike = np.float32) -> np.ndarray:
        count = len(operands[0])
        vectors = np.zeros((3, count, 64), np.uint8)
        for vector, operand in zip(vectors, operands, strict=False):
            as_bytes = np.ascontiguousarray(operand).view(np.uint8).reshape(count, -1)
            vector[:, : as_bytes.shape[1]] = as_bytes
        arguments = [program, name, str(count)]
        results = subprocess.run(
            arguments, input=vectors.tobytes(), stdout=subprocess.PIPE, check=True
        ).stdout
        return np.frombuffer(results, dtype).reshape(count, -1)

    return run


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


def floats(random: np.random.Generator, rows: int = 64) -> np.ndarray:
    """[rows, 16] float32: in the first row every special value, then random bits, at last numbers near 1."""
    anything = random.integers(0, 2**32, (rows // 2, 16), np.uint32).view(np.float32)
    near_one = random.normal(size=(rows - rows // 2 - 1, 16)).astype(np.float32)
    return np.concatenate([np.array([SPECIAL], np.float32), anything, near_one])


def same(actual: np.ndarray, expected: np.ndarray) -> bool:
    """Whether the bits are the same, or both are NaN."""
    bits = f"u{expected.itemsize}"
    both_nan = np.isnan(actual) & np.isnan(expected)
    return bool(np.all((actual.view(bits) == expected.view(bits)) | both_nan))


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
def test_arithmetic_is_that_of_ieee(simd: Operation, random: np.random.Generator, name: str) -> None:
    a, b = floats(random), floats(random)[::-1]
    with np.errstate(all="ignore"):
        assert same(simd(name, a, b), getattr(np, name)(a, b))


@pytest.mark.parametrize("name", ["add", "subtract", "multiply"])
def test_integer_arithmetic(simd: Operation, random: np.random.Generator, name: str) -> None:
    a, b = random.integers(-30000, 30000, (2, 32, 16), np.int32)
    assert (simd(f"{name}_i32", a, b, dtype=np.int32) == getattr(np, name)(a, b)).all()


def test_fma_rounds_once_or_twice_but_always_in_the_same_way(
    simd: Operation, random: np.random.Generator
) -> None:
    # Of a few binary digits' spread: float64 holds the exact sum.
    a, b, c = random.uniform(1, 2, (3, 64, 16)).astype(np.float32)
    once = (a.astype(np.float64) * b - c).astype(np.float32)
    actual = simd("fma", a, b, -c)
    assert not (once == a * b - c).all()
    assert same(actual, once) or same(actual, a * b - c)


def test_fma_rounds_once_where_the_processor_has_it(simd: Operation, request: pytest.FixtureRequest) -> None:
    if "portable" in request.node.callspec.params.values():
        pytest.skip("portable kernels use it where the compiler's target has it")
    x = np.full((1, 16), 1 + 2**-12, np.float32)
    assert (simd("fma", x, x, np.full((1, 16), -(1 + 2**-11), np.float32)) == 2**-24).all()


def test_max_and_min_give_the_second_where_either_is_nan_or_both_are_equal(
    simd: Operation, random: np.random.Generator
) -> None:
    a, b = floats(random), floats(random)[::-1]
    a[1], b[1] = 0.0, -0.0
    assert same(simd("max", a, b), np.where(a > b, a, b))
    assert same(simd("min", a, b), np.where(a < b, a, b))


def test_abs_clears_the_sign_alone(simd: Operation, random: np.random.Generator) -> None:
    x = floats(random)
    assert same(simd("abs", x), np.abs(x))


def test_exp2_is_within_two_ulp(simd: Operation) -> None:
    x = np.linspace(-126, np.nextafter(np.float32(128), 0), 16 * 4096, dtype=np.float32).reshape(-1, 16)
    expected = np.exp2(x.astype(np.float64))
    assert np.max(np.abs(simd("exp2", x) - expected) / np.spacing(expected.astype(np.float32))) <= 2


def test_exp2_below_and_above_and_of_nan(simd: Operation) -> None:
    x = np.zeros((1, 16), np.float32)
    x[0, :8] = [-np.inf, -1e30, -126.00001, -126, 128, 1e30, np.inf, np.nan]
    y = simd("exp2", x)[0]
    assert (y[:3] == 0).all()
    assert y[3] == np.float32(2.0**-126)
    assert (y[4:7] == np.inf).all()
    assert np.isnan(y[7])
    assert (y[8:] == 1).all()


def test_exp_and_silu(simd: Operation) -> None:
    x = np.linspace(-80, 80, 16 * 512, dtype=np.float32).reshape(-1, 16)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(simd("exp", x), np.exp(wide), rtol=1e-5)
    np.testing.assert_allclose(simd("silu", x), wide / (1 + np.exp(-wide)), rtol=1e-5)


def test_gelu_tanh(simd: Operation) -> None:
    x = np.linspace(-20, 20, 16 * 512, dtype=np.float32).reshape(-1, 16)
    wide = x.astype(np.float64)
    inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    # Far below 0 the exponent is large, and its rounding counts; below -10 the result is less than 1e-37.
    np.testing.assert_allclose(simd("gelu_tanh", x), wide / (1 + np.exp(-2 * inner)), rtol=2e-5, atol=1e-37)


@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
def test_activations_of_extreme_numbers(simd: Operation, name: str) -> None:
    largest = np.finfo(np.float32).max
    below = np.array([-largest, -3e38, -1e30, -1000, -100, -90, -89], np.float32)  # e^-x is infinite
    above = np.array([89, 90, 100, 1000, 1e30, 3e38, largest, np.inf], np.float32)
    y = simd(name, np.concatenate([below, above, [np.float32(np.nan)]])[None])[0]
    assert same(y[:7], np.full(7, -0.0, np.float32))
    assert same(y[7:15], above)
    assert np.isnan(y[15])


def test_reductions_go_by_halves(simd: Operation, random: np.random.Generator) -> None:
    x = random.normal(size=(64, 16)).astype(np.float32)
    total = x
    while total.shape[1] > 1:
        total = total[:, : total.shape[1] // 2] + total[:, total.shape[1] // 2 :]
    assert (simd("reduce_add", x)[:, 0] == total[:, 0]).all()
    assert (simd("reduce_max", x)[:, 0] == x.max(axis=1)).all()


def test_to_i32_rounds_ties_to_even_and_what_does_not_fit_to_the_smallest(
    simd: Operation, random: np.random.Generator
) -> None:
    x = np.concatenate([floats(random), random.integers(-(2**25), 2**25, (64, 16)).astype(np.float32) / 4])
    fits = np.abs(x) < 2**31
    expected = np.where(fits, np.rint(np.where(fits, x, 0)), -(2.0**31)).astype(np.int32)
    assert (simd("to_i32", x, dtype=np.int32) == expected).all()


def test_to_f32_rounds_ties_to_even(simd: Operation, random: np.random.Generator) -> None:
    x = random.integers(-(2**31), 2**31, (64, 16), np.int64).astype(np.int32)
    assert same(simd("to_f32", x), x.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_every_16_bit_number_is_read_exactly(simd: Operation, dtype: type) -> None:
    bits = np.arange(2**16, dtype=np.uint16).reshape(-1, 16)
    name = "load_f16" if dtype is np.float16 else "load_bf16"
    assert same(simd(name, bits), bits.view(dtype).astype(np.float32))


def test_store_bf16_rounds_ties_to_even(simd: Operation, random: np.random.Generator) -> None:
    x = floats(random)
    x[-1] = (np.arange(16, dtype=np.uint32) * 0x4000 + 0x3F800000).view(np.float32)  # ties among them
    with np.errstate(all="ignore"):
        expected = x.astype(ml_dtypes.bfloat16)
    assert same(simd("store_bf16", x, dtype=ml_dtypes.bfloat16)[:, :16], expected)


def test_bytes_are_widened_and_narrowed(simd: Operation, random: np.random.Generator) -> None:
    x = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert (simd("load_u8", x, dtype=np.int32) == x).all()
    assert (simd("load_i8", x, dtype=np.int32) == x.view(np.int8)).all()
    wide = random.integers(-1000, 1000, (16, 16), np.int32)
    assert (simd("store_i8", wide, dtype=np.int8)[:, :16] == wide.astype(np.int8)).all()


def test_bytes_are_shifted_as_16_bit_fields(simd: Operation, random: np.random.Generator) -> None:
    x = random.integers(0, 2**16, (8, 32), np.uint16)
    assert (simd("shift_right", x, dtype=np.uint16) == x >> 3).all()
    assert (simd("shift_left", x, dtype=np.uint16) == x << 5).all()


@pytest.mark.parametrize("n", [0, 1, 6, 31])
def test_integers_are_shifted_as_if_unsigned(simd: Operation, random: np.random.Generator, n: int) -> None:
    x = random.integers(0, 2**32, (8, 16), np.uint32)
    by = np.full((8, 1), n, np.int32)
    assert (simd("shift_right_i32", x, x, by, dtype=np.uint32) == x >> n).all()
    assert (simd("shift_left_i32", x, x, by, dtype=np.uint32) == x << n).all()


def test_bits_bytes_and_tables(simd: Operation, random: np.random.Generator) -> None:
    a, b = random.integers(0, 256, (2, 8, 64), np.uint8)
    for name in ("and", "and_i32"):
        assert (simd(name, a, b, dtype=np.uint8) == (a & b)).all()
    for name in ("or", "or_i32"):
        assert (simd(name, a, b, dtype=np.uint8) == (a | b)).all()
    assert (simd("subtract_bytes", a, b, dtype=np.uint8) == a - b).all()
    assert (simd("lookup", a & 15, dtype=np.uint8) == TABLE[a & 15]).all()


@pytest.mark.parametrize(
    ("name", "dtype", "count"),
    [
        ("splat", np.float32, 1),
        ("splat_i32", np.int32, 1),
        ("splat_byte", np.uint8, 1),
        ("splat4", np.int8, 4),
        ("splat_pair", np.uint16, 2),
    ],
)
def test_every_lane_gets_the_same(simd: Operation, name: str, dtype: type, count: int) -> None:
    x = np.arange(1, 1 + 64 // np.dtype(dtype).itemsize, dtype=dtype)
    assert (simd(name, x[None], dtype=dtype)[0] == np.resize(x[:count], x.size)).all()


def test_dot4_is_exact_at_the_extremes(simd: Operation, random: np.random.Generator) -> None:
    u = random.integers(0, 256, (32, 64), np.uint8)
    s = random.integers(-128, 128, (32, 64), np.int8)
    u[:4], s[:2], s[2:4] = 255, -128, 127
    start = random.integers(-1000, 1000, (32, 16), np.int32)
    expected = start + (u.astype(np.int32) * s).reshape(32, 16, 4).sum(axis=2)
    assert (simd("dot4", start, u, s, dtype=np.int32) == expected).all()


def test_dot_pairs_adds_one_product_then_the_other(
    simd: Operation, random: np.random.Generator, request: pytest.FixtureRequest
) -> None:
    start = random.normal(size=(256, 16)).astype(np.float32)
    a, b = random.normal(size=(2, 256, 32)).astype(ml_dtypes.bfloat16)
    products = (a.astype(np.float64) * b.astype(np.float64)).reshape(256, 16, 2)
    actual = simd("dot_pairs", start, a, b)

    def added(one: int, other: int) -> np.ndarray:
        return ((start + products[..., one]).astype(np.float32) + products[..., other]).astype(np.float32)

    own_instruction = "avx512_bf16" in request.node.callspec.params.values()  # which begins with the second
    assert same(actual, added(0, 1)) or (own_instruction and same(actual, added(1, 0)))


@pytest.mark.parametrize("n", [0, 1, 4, 7, 8, 13, 15, 16, 40])
def test_first_lanes(simd: Operation, n: int) -> None:
    a = np.arange(16, dtype=np.int32)[None]
    chosen = simd("first_lanes", a, a - 100, np.array([[n]], np.int32), dtype=np.int32)
    assert (chosen == np.where(a < n, a, a - 100)).all()


def test_greater_is_false_for_nan(simd: Operation, random: np.random.Generator) -> None:
    a, b, c = floats(random), floats(random)[::-1], floats(random)
    assert same(simd("greater", a, b, c), np.where(a > b, c, np.float32(0)))
