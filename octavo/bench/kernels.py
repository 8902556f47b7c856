"""Measures each native kernel: the seconds of a call, and the share of the machine's peak that it reaches.

A run is a small program that calls one kernel many times. Each call has its own weights or KV cache, so that
these are read from memory and not from a cache of the processor, as in a model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.table import Table

from octavo.backends.native.kv_cache import KVCaches, head_bytes
from octavo.backends.native.library import load_library, make_device
from octavo.backends.native.program import compile_program
from octavo.bench.probes import MachineProbe, probe_machine
from octavo.bench.report import describe_barriers, describe_probe
from octavo.bench.weights import random_weight
from octavo.bench.work import AttentionWork, Work, arithmetic_of
from octavo.errors import UnsupportedError
from octavo.machine.processors import default_num_threads
from octavo.ops import AttentionLayer, Linear, Ops
from octavo.types.batch import CommonAttentionMetadata
from octavo.types.kv import FullAttentionSpec, KVCacheConfig, KVCacheGroup
from octavo.weights.formats import format_named

if TYPE_CHECKING:
    from octavo.backends.native._native import Device

STANDARD_FORMATS = ("BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
# (inputs, outputs) in models of 135 million and of 1 billion parameters.
LINEAR_SHAPES = ((576, 1536), (2048, 8192))
LINEAR_TOKENS = (1, 4, 16, 64, 512)
# (query heads, KV heads, head size) in models of 135 million and of 8 billion parameters.
ATTENTION_HEADS = ((9, 3, 64), (32, 8, 128))
DECODE_CONTEXTS = (256, 2048, 8192)
PREFILL_TOKENS = 512
NORM_SIZES = (576, 2048)
NORM_TOKENS = (1, 512)
NUM_NORMS = 64

BLOCK_SIZE = 16
ROTATED_BYTES = 128 * 2**20  # weights or KV that all calls of a run read together
LEAST_RUNS = 3
LEAST_MEASURED_S = 0.2


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The time of one call of a kernel, from the fastest run, which was disturbed least."""

    name: str
    num_tokens: int
    call_s: float
    work: Work

    @property
    def bytes_per_s(self) -> float:
        """Weights, or keys and values, read per second."""
        return self.work.num_bytes / self.call_s

    @property
    def ops_per_s(self) -> float:
        """Multiplications and additions per second."""
        return sum(self.work.num_ops.values()) / self.call_s


@dataclass(frozen=True, slots=True)
class KernelReport:
    """All kernels, and the machine they ran on."""

    instruction_set: str
    threads: int
    probe: MachineProbe
    barrier_before_ns: float
    barrier_after_ns: float
    times: list[KernelTime]

    def to_json(self) -> dict[str, Any]:
        """The report as objects for JSON, with rates and shares."""
        shown = [
            {
                **dataclasses.asdict(time),
                "bytes_per_s": time.bytes_per_s,
                "ops_per_s": time.ops_per_s,
                "bandwidth_share": self.probe.memory_s(time.work) / time.call_s,
                "arithmetic_share": self.probe.arithmetic_s(time.work) / time.call_s,
            }
            for time in self.times
        ]
        return {**dataclasses.asdict(self), "times": shown}

    def render(self) -> Group:
        """The report as a table with a line for each kernel and number of tokens."""
        machine = [
            f"{self.instruction_set}, {self.threads} threads",
            describe_probe(self.probe),
            describe_barriers(self.barrier_before_ns, self.barrier_after_ns),
        ]
        table = Table(title="Native kernels")
        table.add_column("kernel", no_wrap=True)
        for heading in ("tokens", "µs", "GB/s", "of memory", "GOP/s", "of arithmetic"):
            table.add_column(heading, justify="right")
        for time in self.times:
            table.add_row(
                time.name,
                str(time.num_tokens),
                f"{time.call_s * 1e6:,.1f}",
                f"{time.bytes_per_s / 1e9:,.1f}",
                f"{self.probe.memory_s(time.work) / time.call_s:.0%}",
                f"{time.ops_per_s / 1e9:,.0f}",
                f"{self.probe.arithmetic_s(time.work) / time.call_s:.0%}",
            )
        return Group(table, "\n".join(machine))


def measure_all(formats: Sequence[str], num_threads: int | None, tell: Callable[[str], None]) -> KernelReport:
    """Probe the machine, and measure every kernel. `tell` is called with each kernel's name after it.

    `formats` may be in upper or lower case. `num_threads` None = as many as an engine takes by default.
    Raises UnsupportedError without the native backend and for a format that it does not multiply, and
    ConfigError for a number of threads that no device can have.
    """
    formats = tuple(map(_format_with_kernel, formats))
    device = make_device(num_threads or default_num_threads())
    probe, before_ns, times = probe_machine(device), device.barrier_ns(), []
    for time in measure_kernels(device, formats):
        tell(f"{time.name}, {time.num_tokens} tokens")
        times.append(time)
    return KernelReport(
        device.instruction_set, device.num_threads, probe, before_ns, device.barrier_ns(), times
    )


def measure_kernels(device: Device, formats: Sequence[str]) -> Iterator[KernelTime]:
    """Measure every kernel in turn. All `formats` must have kernels."""
    for format_name in formats:
        for shape in LINEAR_SHAPES:
            if shape[0] % format_named(format_name).block_size == 0:
                yield from measure_linear(device, format_name, shape)
    for heads in ATTENTION_HEADS:
        for context in DECODE_CONTEXTS:
            yield measure_attention(device, heads, context, num_tokens=1)
        yield measure_attention(device, heads, PREFILL_TOKENS, PREFILL_TOKENS)
    for size in NORM_SIZES:
        yield from measure_norm(device, size)


def measure_linear(
    device: Device,
    format_name: str,
    shape: tuple[int, int],
    tokens: Sequence[int] = LINEAR_TOKENS,
    rotated_bytes: int = ROTATED_BYTES,
) -> Iterator[KernelTime]:
    """Measure a linear map of `shape` (inputs, outputs) for each number of tokens in `tokens`."""
    num_inputs, num_outputs = shape
    weight = random_weight(format_name, num_outputs, num_inputs)
    layers = [Linear((dataclasses.replace(weight),)) for _ in range(-(-rotated_bytes // weight.nbytes))]

    def function(ops: Ops[Any], token_ids: Any, positions: Any, x: Any) -> Any:
        return [ops.linear(x, layer) for layer in layers][-1]

    program = compile_program(device, function, {"x": num_inputs})
    for num_tokens in tokens:
        x = _random_rows(num_tokens, num_inputs)
        num_ops = {arithmetic_of(format_name): 2 * num_inputs * num_outputs * num_tokens}
        yield KernelTime(
            name=f"linear {format_name} {num_inputs} → {num_outputs}",
            num_tokens=num_tokens,
            call_s=_fastest_s(partial(program.run, num_tokens, x=x)) / len(layers),
            work=Work(weight.nbytes, num_ops),
        )


def measure_attention(
    device: Device,
    heads: tuple[int, int, int],
    context: int,
    num_tokens: int,
    rotated_bytes: int = ROTATED_BYTES,
) -> KernelTime:
    """Measure attention of the last `num_tokens` tokens of one request with `context` tokens.

    `heads` are the query heads, the KV heads and the head size.
    """
    num_heads, num_kv_heads, head_size = heads
    spec = FullAttentionSpec(BLOCK_SIZE, num_kv_heads, head_size, head_bytes("bf16", head_size))
    num_blocks = spec.num_blocks_for(context, context)
    num_layers = -(-rotated_bytes // (num_blocks * spec.page_bytes))
    caches = KVCaches(KVCacheConfig(1 + num_blocks, (KVCacheGroup(spec, tuple(range(num_layers))),)), "bf16")
    # Memory pages that were never written all map to one page of zeros, which would stay in the cache.
    caches.zero(np.arange(1 + num_blocks, dtype=np.int32))
    layers = [
        AttentionLayer(index, num_heads, num_kv_heads, head_size, head_size**-0.5)
        for index in range(num_layers)
    ]

    def function(ops: Ops[Any], token_ids: Any, positions: Any, qkv: Any) -> Any:
        q, k, v = ops.split_heads(qkv, (num_heads, num_kv_heads, num_kv_heads))
        return [ops.attention(q, k, v, layer) for layer in layers][-1]

    num_columns = (num_heads + 2 * num_kv_heads) * head_size
    program = compile_program(device, function, {"qkv": num_columns}, caches)
    positions = np.arange(context - num_tokens, context, dtype=np.int64)
    metadata = _one_request(context, positions)
    qkv = _random_rows(num_tokens, num_columns)
    run_s = _fastest_s(lambda: program.run(num_tokens, positions=positions, attention=(metadata,), qkv=qkv))
    return KernelTime(
        name=f"attention {num_heads}/{num_kv_heads} x {head_size}, context {context}",
        num_tokens=num_tokens,
        call_s=run_s / num_layers,
        work=AttentionWork.of_layer(layers[0], spec.page_bytes / BLOCK_SIZE).of_step(1, num_tokens, context),
    )


def measure_norm(device: Device, size: int) -> Iterator[KernelTime]:
    """Measure an RMS norm of rows of `size` columns, most of which are in a cache, as in a model."""
    weight = random_weight("F32", 1, size)
    vector = dataclasses.replace(weight, shape=(size,))

    def function(ops: Ops[Any], token_ids: Any, positions: Any, x: Any) -> Any:
        for _ in range(NUM_NORMS):
            x = ops.rms_norm(x, vector, 1e-5)
        return x

    program = compile_program(device, function, {"x": size})
    for num_tokens in NORM_TOKENS:
        x = _random_rows(num_tokens, size)
        yield KernelTime(
            name=f"norm of {size}",
            num_tokens=num_tokens,
            call_s=_fastest_s(partial(program.run, num_tokens, x=x)) / NUM_NORMS,
            work=Work(2 * x.nbytes, {}),
        )


def _format_with_kernel(name: str) -> str:
    found = name.upper()
    formats = load_library().FORMATS
    if found not in formats:
        raise UnsupportedError(
            f"there are no kernels for weights in format {name!r}; known: {', '.join(formats)}"
        )
    return found


def _fastest_s(run: Callable[[], Any]) -> float:
    run()  # the first run allocates memory
    taken: list[float] = []
    while len(taken) < LEAST_RUNS or sum(taken) < LEAST_MEASURED_S:
        begun = perf_counter()
        run()
        taken.append(perf_counter() - begun)
    return min(taken)


def _random_rows(num_rows: int, num_columns: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((num_rows, num_columns), np.float32)


def _one_request(context: int, positions: np.ndarray) -> CommonAttentionMetadata:
    """A request with `context` tokens in blocks 1, 2, 3 …. The step runs the tokens at `positions`."""
    num_blocks = -(-context // BLOCK_SIZE)
    return CommonAttentionMetadata(
        query_start_loc=np.array([0, len(positions)], np.int32),
        seq_lens=np.array([context], np.int32),
        block_table=np.arange(1, 1 + num_blocks, dtype=np.int32)[None],
        slot_mapping=BLOCK_SIZE + positions,
        num_common_prefix_blocks=0,
    )
