from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from octavo.bench.generation import Load, Run, StepTime
from octavo.bench.probes import MachineProbe, is_same_state
from octavo.bench.report import Setup, describe_barriers, render, summarize
from octavo.bench.work import AttentionWork, ModelWork, Work

LOAD = Load(num_requests=2, input_len=4, output_len=4)
WORK = ModelWork(
    weight_bytes=1000,
    token_ops={"int8": 100},
    head_ops={"int8": 10},
    attention=(AttentionWork(2, 5.0, None),),
)
PROBE = MachineProbe(read_bytes_per_s=10_000, ops_per_s={"f32": 100, "bf16": 1000, "int8": 2000})
SETUP = Setup(
    model="smollm2",
    backend="native",
    instruction_set="avx512_bf16",
    threads=2,
    load_s=0.5,
    kv_cache_tokens=4096,
    weight_bytes=1000,
    probe=PROBE,
    barrier_before_ns=70.0,
    barrier_after_ns=75.0,
)


def _run(step_s: float) -> Run:
    steps = tuple(StepTime(step_s * (number + 1), step_s * 0.75, 2) for number in range(4))
    return Run(LOAD, steps, num_prefill_steps=1)


def _text(setup: Setup, runs: list[Run]) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(render(setup, summarize(runs, WORK, setup.probe)))
    return capture.get()


def test_figures_are_medians_over_the_runs() -> None:
    figures = summarize([_run(1.0), _run(0.25), _run(0.5)], WORK, None)
    assert figures.num_iters == 3
    assert figures.decode_step_s == 0.5
    assert figures.decode_tokens_per_s == 2 / 0.5
    assert figures.prefill_tokens_per_s == 8 / 0.5
    assert figures.total_tokens_per_s == 16 / 2.0
    assert figures.python_share == pytest.approx(0.25)


def test_decode_is_compared_with_the_bytes_of_its_middle_step() -> None:
    figures = summarize([_run(0.5)], WORK, PROBE)
    half_way = 1000 + 2 * 6 * 5  # weights, and two requests of six tokens
    assert figures.decode_memory_s == half_way / 10_000
    assert figures.bandwidth_share == pytest.approx(half_way / 10_000 / 0.5)


def test_prefill_is_compared_with_its_operations() -> None:
    figures = summarize([_run(0.5)], WORK, PROBE)
    linear, attention = 2 * 4 * 100 + 2 * 10, 2 * 2 * (1 + 2 + 3 + 4)
    assert figures.arithmetic_share == pytest.approx((linear / 2000 + attention / 1000) / 0.5)


def test_a_load_without_decode_has_no_bound_for_it() -> None:
    run = Run(Load(1, 4, 1), (StepTime(0.5, 0.25, 1),), num_prefill_steps=1)
    figures = summarize([run], WORK, PROBE)
    assert (figures.decode_memory_s, figures.decode_arithmetic_s, figures.bandwidth_share) == (None,) * 3
    assert figures.arithmetic_share is not None


def test_without_a_probe_there_are_no_shares() -> None:
    figures = summarize([_run(0.5)], WORK, None)
    assert (figures.bandwidth_share, figures.arithmetic_share, figures.decode_memory_s) == (None, None, None)


def test_the_peak_of_an_arithmetic_is_that_of_its_tiles_where_there_are_some() -> None:
    probe = MachineProbe(1.0, {"f32": 1.0, "bf16": 2.0, "int8": 4.0, "int8_tiles": 32.0})
    assert (probe.peak("bf16"), probe.peak("int8")) == (2.0, 32.0)
    assert probe.arithmetic_s(Work(0, {"bf16": 4, "int8": 64})) == 4 / 2 + 64 / 32


def test_barriers_tell_whether_other_programs_run() -> None:
    assert "other programs" in describe_barriers(70, 100_000)
    assert "other programs" not in describe_barriers(70, 390)


@pytest.mark.parametrize(("before", "after", "same"), [(70, 75, True), (70, 390, False), (390, 70, False)])
def test_barriers_tell_whether_the_machine_changed(before: float, after: float, same: bool) -> None:
    assert is_same_state(before, after) is same
    assert ("measure again" in describe_barriers(before, after)) is not same


def test_the_table_has_speeds_shares_and_the_machine() -> None:
    text = _text(SETUP, [_run(0.5)])
    for shown in (
        "2 requests, 4 tokens in, 4 out",
        "avx512_bf16, 2 threads",
        "25.0% Python and scheduling",
        "4.0",
        "16.0",
    ):
        assert shown in text
    assert "21.2% of the memory bandwidth" in text


def test_the_table_of_a_reference_backend_has_no_machine() -> None:
    reference = replace(
        SETUP,
        backend="reference",
        instruction_set=None,
        threads=None,
        probe=None,
        barrier_before_ns=None,
        barrier_after_ns=None,
    )
    text = _text(reference, [_run(0.5), _run(0.5)])
    assert "median of 2" in text
    assert "backend reference" in text
    assert "barrier" not in text
    assert "bandwidth" not in text
