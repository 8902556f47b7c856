"""The probes and the kernel benchmark on every instruction set that this machine has."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console

from octavo.backends.native.library import load_library
from octavo.bench import kernels, probes
from octavo.bench.kernels import KernelReport, KernelTime, measure_attention, measure_linear, measure_norm
from octavo.bench.probes import MachineProbe, probe_machine
from octavo.bench.work import Work
from tests.native import instruction_sets
from tests.scripted_program import Octavo

REPORT = KernelReport(
    instruction_set="avx2",
    threads=2,
    probe=MachineProbe(read_bytes_per_s=1e9, ops_per_s={"int8": 4e9}),
    barrier_before_ns=70.0,
    barrier_after_ns=400.0,
    times=[KernelTime("linear Q4_0 64 → 64", 4, 2e-3, Work(1e6, {"int8": 2e6}))],
)


@pytest.fixture(params=instruction_sets())
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A device of two threads. What is measured on it is little, and quickly done."""
    if request.param is None:
        pytest.skip("the native extension is not built")
    monkeypatch.setattr(probes, "PROBE_BYTES", 2**20)
    monkeypatch.setattr(kernels, "LEAST_MEASURED_S", 0.0)
    return load_library().Device(request.param, 2)


def test_a_probe_has_every_arithmetic_that_the_instruction_set_has(device: Any) -> None:
    probe = probe_machine(device)
    tiles = {"bf16_tiles", "int8_tiles"} if device.instruction_set == "amx" else set()
    assert set(probe.ops_per_s) == {"f32", "bf16", "int8"} | tiles
    # No machine is slower than this, and none faster: a wrong count of operations is.
    assert all(1e7 < rate < 1e15 for rate in probe.ops_per_s.values())
    assert 1e7 < probe.read_bytes_per_s < 1e14


def test_probes_refuse_what_they_cannot_measure(device: Any) -> None:
    library = load_library()
    with pytest.raises(ValueError, match="no arithmetic 'int4'; there are f32, bf16, int8"):
        library.measure_arithmetic(device, "int4")
    with pytest.raises(ValueError, match="num_bytes is 100; it must be at least"):
        library.measure_read_bandwidth(device, 100)


@pytest.mark.parametrize(
    ("format_name", "shape"), [("BF16", (64, 48)), ("Q4_1", (64, 48)), ("Q6_K", (256, 32))]
)
def test_linear_maps_of_every_number_of_tokens_are_timed(
    device: Any, format_name: str, shape: tuple[int, int]
) -> None:
    times = list(measure_linear(device, format_name, shape, tokens=(1, 5), rotated_bytes=2**14))
    assert [time.num_tokens for time in times] == [1, 5]
    assert all(time.call_s > 0 for time in times)
    assert [sum(time.work.num_ops.values()) for time in times] == [
        2 * shape[0] * shape[1] * count for count in (1, 5)
    ]


@pytest.mark.parametrize(("context", "num_tokens"), [(40, 1), (24, 24)])
def test_attention_is_timed(device: Any, context: int, num_tokens: int) -> None:
    time = measure_attention(device, (4, 2, 32), context, num_tokens, rotated_bytes=2**14)
    assert time.call_s > 0
    assert time.work.num_bytes == context * 2 * 2 * 32 * 2


def test_norms_are_timed(device: Any) -> None:
    assert all(time.call_s > 0 for time in measure_norm(device, 64))


def test_rates_and_shares_come_from_the_work_and_the_probe() -> None:
    (shown,) = REPORT.to_json()["times"]
    assert shown["bytes_per_s"] == 1e6 / 2e-3
    assert shown["bandwidth_share"] == pytest.approx(0.5)
    assert shown["ops_per_s"] == 2e6 / 2e-3
    assert shown["arithmetic_share"] == pytest.approx(0.25)


def test_the_table_says_when_the_machine_changed_meanwhile() -> None:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(REPORT.render())
    text = capture.get()
    assert "linear Q4_0 64 → 64" in text
    assert "50%" in text
    assert "25%" in text
    assert "measure again" in text


def test_the_command_reports_the_formats_it_was_asked_for(
    octavo: Octavo, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def measure(device: Any, formats: tuple[str, ...]) -> list[KernelTime]:
        asked.append(formats)
        return REPORT.times

    monkeypatch.setattr(kernels, "measure_kernels", measure)
    result = octavo("bench", "kernels", "--format", "q4_0", "--threads", "1", "--json", "-")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert asked == [("Q4_0",)]
    assert report["threads"] == 1
    assert report["times"][0]["name"] == "linear Q4_0 64 → 64"


def test_the_command_names_the_formats_there_are_before_it_measures(octavo: Octavo) -> None:
    result = octavo("bench", "kernels", "--format", "IQ2_XXS")
    assert result.exit_code == 1
    assert result.stderr == (
        "octavo: error: there are no kernels for weights in format 'IQ2_XXS'; known: F32, F16, BF16, "
        "Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL\n"
    )


def test_the_command_names_the_threads_it_takes(octavo: Octavo, device: Any) -> None:
    result = octavo("bench", "kernels", "--threads", "5000")
    assert result.exit_code == 1
    assert result.stderr == "octavo: error: num_threads must be from 1 to 1024, not 5000\n"
