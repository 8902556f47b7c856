"""Kernels through the extension module alone, without recording, fusion or planned buffers.

Where these fail, a kernel is wrong. Where others fail alone, the fault lies between a model and its kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.native.library import load_library
from octavo.bench.weights import random_weight
from octavo.weights.formats import Format
from tests.native import FORMATS

NUM_TOKENS = 20
# Values are about 1 and sums short: float32 is right to a few millionths.
TOLERANCE = 1e-5


class Bench:
    """A native program of one instruction: inputs come first, the output has a buffer to itself."""

    def __init__(self, device: Any, num_outputs: int, **inputs: np.ndarray) -> None:
        self.program = load_library().Program(device)
        self.arrays = list(inputs.values())
        self.operands = {
            name: (self.program.add_input(name, array.shape[1]), 0, array.shape[1])
            for name, array in inputs.items()
        }
        self.out = (self.program.add_buffer(0, num_outputs), 0, num_outputs)
        self.program.add_output(self.out)

    def run(self, groups: list[Any] | None = None) -> np.ndarray:
        (y,) = self.program.run(len(self.arrays[0]), None, None, groups or [], self.arrays)
        return y


def random_array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("format", FORMATS, ids=[format.name for format in FORMATS])
@pytest.mark.parametrize("num_rows", [1, 20])
def test_linear(device: Any, format: Format, num_rows: int) -> None:
    library, weight = load_library(), random_weight(format.name, 40, 512)
    panel_bytes = library.panel_bytes(format.name, 512)
    memory = library.Memory(3 * panel_bytes)
    library.pack_into(device, format.name, weight.data, 512, memory, 0, panel_bytes)
    x = random_array(num_rows, 512)
    bench = Bench(device, 40, x=x)
    matrix = library.PackedMatrix(
        memory=memory, offset=0, format=format.name, n=40, k=512, panel_stride=panel_bytes, bias=None
    )
    bench.program.linear(
        **bench.operands,
        norm_weight=None,
        norm_eps=0.0,
        parts=[matrix],
        activation="none",
        residual=None,
        out=bench.out,
    )
    values = weight.to_float32().reshape(40, 512).astype(np.float64)
    # Activations become 8 bits beside quants (an error of half a step) and bf16 beside bf16.
    steps = {"F32": 1e-6, "F16": 1e-6, "BF16": 2**-8}
    error = np.abs(x).max() * steps.get(format.name, 1 / 254) * np.abs(values).sum(axis=1)
    assert (np.abs(bench.run() - x @ values.T) <= error + TOLERANCE).all()


def test_rms_norm(device: Any) -> None:
    x, residual, weight = random_array(NUM_TOKENS, 40), random_array(NUM_TOKENS, 40, seed=1), random_array(20)
    bench = Bench(device, 40, x=x, residual=residual)
    bench.program.rms_norm(**bench.operands, weight=weight, eps=0.1, out=bench.out)
    heads = x.astype(np.float64).reshape(NUM_TOKENS, 2, 20)
    exact = heads / np.sqrt((heads**2).mean(axis=2, keepdims=True) + 0.1) * weight
    np.testing.assert_allclose(bench.run(), exact.reshape(x.shape) + residual, rtol=0, atol=TOLERANCE)


def test_rope(device: Any) -> None:
    x, angles = random_array(NUM_TOKENS, 36), random_array(NUM_TOKENS, 4, seed=1)
    turned = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    bench = Bench(device, 36, x=x, angles=turned)
    bench.program.rope(**bench.operands, style="half", head_size=12, rotary_size=8, out=bench.out)
    heads = x.reshape(NUM_TOKENS, 3, 12).astype(np.float64)
    pairs = heads[..., :4] + 1j * heads[..., 4:8]
    pairs = pairs * np.exp(1j * angles[:, None])
    exact = np.concatenate([pairs.real, pairs.imag, heads[..., 8:]], axis=2)
    np.testing.assert_allclose(bench.run(), exact.reshape(x.shape), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_activate_and_mul(device: Any, activation: str) -> None:
    x = random_array(NUM_TOKENS, 48)
    bench = Bench(device, 24, x=x)
    bench.program.activate_and_mul(**bench.operands, activation=activation, out=bench.out)
    gate, up = np.split(x.astype(np.float64), 2, axis=1)
    gelu = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    exact = (gate / (1 + np.exp(-gate)) if activation == "silu" else gelu) * up
    np.testing.assert_allclose(bench.run(), exact, rtol=0, atol=TOLERANCE)


def test_attention(device: Any) -> None:
    """One request, its context in two blocks, which do not lie in order; four heads on two."""
    library, size = load_library(), 16
    q, k, v = (random_array(NUM_TOKENS, heads * size, seed=heads) for heads in (4, 2, 2))
    v = v[:, ::-1].copy()  # k and v have the same seed
    page_bytes = 16 * 2 * library.kv_head_bytes("f32", size)
    pages = library.KVPages(num_pages=1, num_blocks=3, page_bytes=page_bytes)
    cache = pages.layer(page=0, type="f32", block_size=16, num_kv_heads=2, head_size=size)
    bench = Bench(device, 4 * size, q=q, k=k, v=v)
    placed = (bench.program.add_buffer(4 * size, 4 * size), 0, 4 * size)
    bench.program.attention_inputs(
        **bench.operands,
        angles=None,
        style="none",
        rotary_size=0,
        scale=0.25,
        cache=cache,
        group=0,
        out=placed,
    )
    bench.program.attention(
        q=placed, cache=cache, group=0, causal=True, window=0, soft_cap=0.0, sinks=None, out=bench.out
    )
    blocks = np.array([[2, 1]], np.int32)
    slots = np.concatenate([32 + np.arange(16), 16 + np.arange(4)])
    lengths = np.array([0, NUM_TOKENS], np.int32)
    out = bench.run([(lengths, lengths[1:], blocks, slots, 0)])

    q, k, v = (array.astype(np.float64).reshape(NUM_TOKENS, -1, size) for array in (q, k, v))
    scores = np.einsum("qhd,khd->hqk", q, np.repeat(k, 2, axis=1)) * 0.25
    scores[:, np.triu_indices(NUM_TOKENS, 1)[0], np.triu_indices(NUM_TOKENS, 1)[1]] = -np.inf
    weights = np.exp(scores)
    exact = np.einsum("hqk,khd->qhd", weights / weights.sum(axis=2, keepdims=True), np.repeat(v, 2, axis=1))
    np.testing.assert_allclose(out, exact.reshape(NUM_TOKENS, -1), rtol=0, atol=TOLERANCE)
