"""The figures of a load, and their share of what this machine can do at most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from rich.console import Group
from rich.table import Table

from octavo.bench.generation import Run
from octavo.bench.probes import BUSY_BARRIER_NS, MachineProbe, is_same_state
from octavo.bench.work import ModelWork


@dataclass(frozen=True, slots=True)
class Setup:
    """The model, the engine and the machine that a load ran on."""

    model: str
    backend: str
    instruction_set: str | None  # this and the other fields that may be None are the native backend's
    threads: int | None
    load_s: float  # to find, read and prepare the model
    kv_cache_tokens: int
    weight_bytes: int  # read by a step
    probe: MachineProbe | None
    barrier_before_ns: float | None
    barrier_after_ns: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians over the iterations. None = there was nothing to measure, or nothing to compare with."""

    num_requests: int
    input_len: int
    output_len: int
    prefix_len: int
    num_iters: int
    num_tokens: int  # of one iteration: prompts and outputs
    wall_s: float
    time_to_first_token_s: float  # of the request that waited longest
    decode_step_s: float | None
    prefill_tokens_per_s: float
    decode_tokens_per_s: float | None
    total_tokens_per_s: float
    python_share: float | None  # share of a decode step's time outside the backend
    decode_memory_s: float | None  # least time to read the bytes of a decode step in the middle of the output
    decode_arithmetic_s: float | None  # least time to compute the operations of that step
    bandwidth_share: float | None  # share of the machine's memory bandwidth that decode reaches
    arithmetic_share: float | None  # share of the machine's arithmetic peak that prefill reaches


def summarize(runs: Sequence[Run], work: ModelWork, probe: MachineProbe | None) -> Figures:
    """The figures of several runs of one load."""
    load = runs[0].load
    decode_step_s = _median(runs, lambda run: run.decode_step_s)
    first_token_s = median(run.time_to_first_token_s for run in runs)
    memory_s = arithmetic_s = prefill_s = None
    if probe is not None and decode_step_s is not None:
        context = load.context_len - load.output_len + load.output_len // 2
        half_way = work.of_step(load.num_requests, 1, context, load.prefix_len)
        memory_s, arithmetic_s = probe.memory_s(half_way), probe.arithmetic_s(half_way)
    if probe is not None:
        context = load.prefix_len + load.input_len
        prefill_s = probe.arithmetic_s(work.of_step(load.num_requests, load.input_len, context))
    return Figures(
        num_requests=load.num_requests,
        input_len=load.input_len,
        output_len=load.output_len,
        prefix_len=load.prefix_len,
        num_iters=len(runs),
        num_tokens=load.num_tokens,
        wall_s=median(run.wall_s for run in runs),
        time_to_first_token_s=first_token_s,
        decode_step_s=decode_step_s,
        prefill_tokens_per_s=median(run.prefill_tokens_per_s for run in runs),
        decode_tokens_per_s=_median(runs, lambda run: run.decode_tokens_per_s),
        total_tokens_per_s=median(run.total_tokens_per_s for run in runs),
        python_share=_median(runs, lambda run: run.python_share),
        decode_memory_s=memory_s,
        decode_arithmetic_s=arithmetic_s,
        bandwidth_share=memory_s / decode_step_s if memory_s and decode_step_s else None,
        arithmetic_share=prefill_s / first_token_s if prefill_s else None,
    )


def render(setup: Setup, figures: Figures) -> Group:
    """The figures as a table, and the setup under it."""
    table = Table(title=_describe_load(figures))
    for heading in ("", "tokens/s", "ms", ""):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row(
        "prefill",
        f"{figures.prefill_tokens_per_s:,.1f}",
        f"{figures.time_to_first_token_s * 1000:,.1f}",
        "to the first token" + _percent(figures.arithmetic_share, "of the arithmetic peak"),
    )
    if figures.decode_tokens_per_s is not None and figures.decode_step_s is not None:
        table.add_row(
            "decode",
            f"{figures.decode_tokens_per_s:,.1f}",
            f"{figures.decode_step_s * 1000:,.3f}",
            "a step"
            + _percent(figures.bandwidth_share, "of the memory bandwidth")
            + _percent(figures.python_share, "Python and scheduling"),
        )
    table.add_row("all", f"{figures.total_tokens_per_s:,.1f}", f"{figures.wall_s * 1000:,.1f}", "in and out")
    return Group(table, _describe_setup(setup))


def describe_probe(probe: MachineProbe) -> str:
    """The probe as one line."""
    rates = ", ".join(f"{name} {rate / 1e9:,.0f}" for name, rate in probe.ops_per_s.items())
    return f"memory {probe.read_bytes_per_s / 1e9:.1f} GB/s; GOP/s: {rates}"


def describe_barriers(before_ns: float, after_ns: float) -> str:
    """The times of the barriers as one line. It says whether they make the figures unreliable."""
    line = f"a barrier takes {before_ns:,.0f} ns before and {after_ns:,.0f} ns after"
    if max(before_ns, after_ns) > BUSY_BARRIER_NS:
        return f"{line}: other programs use these processors, so the figures are unreliable"
    if is_same_state(before_ns, after_ns):
        return line
    return f"{line}: the machine changed, so the figures are unreliable; measure again"


def _describe_load(figures: Figures) -> str:
    requests = "1 request" if figures.num_requests == 1 else f"{figures.num_requests} requests"
    repeated = "" if figures.num_iters == 1 else f", median of {figures.num_iters}"
    prefix = f" behind {figures.prefix_len} that all share" if figures.prefix_len else ""
    return f"{requests}, {figures.input_len} tokens in{prefix}, {figures.output_len} out{repeated}"


def _describe_setup(setup: Setup) -> str:
    megabytes = f"{setup.weight_bytes / 1e6:,.1f} MB"
    lines = [f"{setup.model}: loaded in {setup.load_s:.2f} s, a step reads {megabytes} of weights"]
    backend = f"backend {setup.backend}"
    if setup.instruction_set is not None:
        backend += f", {setup.instruction_set}, {setup.threads} threads"
    lines.append(backend)
    if setup.probe is not None:
        lines.append(describe_probe(setup.probe))
    if setup.barrier_before_ns is not None and setup.barrier_after_ns is not None:
        lines.append(describe_barriers(setup.barrier_before_ns, setup.barrier_after_ns))
    return "\n".join(lines)


def _median(runs: Sequence[Run], figure: Callable[[Run], float | None]) -> float | None:
    values = [value for run in runs if (value := figure(run)) is not None]
    return median(values) if values else None


def _percent(share: float | None, of_what: str) -> str:
    return "" if share is None else f"\n{share:.1%} {of_what}"
