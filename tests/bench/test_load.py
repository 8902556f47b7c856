"""`octavo bench latency` and `throughput` on the tiny model and the reference backend."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.backends.native.library import usable_instruction_sets
from tests.scripted_program import Octavo, ScriptedCore

SETTINGS = ["--backend", "reference", "--kv-cache-memory", "4MiB", "--num-iters", "2"]


@pytest.mark.parametrize(
    ("command", "count_flag"), [("latency", "--batch-size"), ("throughput", "--num-prompts")]
)
def test_json_has_the_figures_and_nothing_else_is_on_standard_output(
    octavo: Octavo, tiny_model: Path, command: str, count_flag: str
) -> None:
    shape = [count_flag, "3", "--input-len", "10", "--output-len", "5"]
    result = octavo("bench", command, str(tiny_model), *shape, *SETTINGS, "--json", "-")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures["benchmark"] == command
    assert figures["model"] == str(tiny_model)
    assert figures["backend"] == "reference"
    assert (figures["num_requests"], figures["num_iters"], figures["num_tokens"]) == (3, 2, 3 * 15)
    for speed in ("prefill_tokens_per_s", "decode_tokens_per_s", "total_tokens_per_s"):
        assert figures[speed] > 0
    assert figures["load_s"] > 0
    assert 0 < figures["python_share"] < 1


@pytest.mark.skipif(not usable_instruction_sets(), reason="the native extension is not built")
def test_on_the_native_backend_the_machine_is_probed(octavo: Octavo, tiny_model: Path) -> None:
    flags = ["--backend", "native", "--threads", "2", "--kv-cache-memory", "4MiB", "--num-iters", "1"]
    result = octavo("bench", "latency", str(tiny_model), "--output-len", "4", *flags, "--json", "-")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert (figures["backend"], figures["threads"]) == ("native", 2)
    assert figures["instruction_set"] in usable_instruction_sets()
    assert figures["probe"]["read_bytes_per_s"] > 0
    assert figures["barrier_before_ns"] > 0
    assert figures["barrier_after_ns"] > 0
    assert figures["bandwidth_share"] > 0
    assert figures["arithmetic_share"] > 0


def test_a_table_is_for_people(octavo: Octavo, tiny_model: Path) -> None:
    result = octavo("bench", "latency", str(tiny_model), "--output-len", "1", *SETTINGS)
    assert result.exit_code == 0, result.output
    assert "1 request, 32 tokens in, 1 out" in result.stdout
    assert "prefill" in result.stdout
    assert "decode" not in result.stdout


def test_a_prefix_is_told_of(octavo: Octavo, tiny_model: Path) -> None:
    shape = ["--batch-size", "2", "--input-len", "8", "--output-len", "3", "--prefix-len", "40"]
    result = octavo("bench", "latency", str(tiny_model), *shape, *SETTINGS)
    assert result.exit_code == 0, result.output
    assert "2 requests, 8 tokens in behind 40 that all share, 3 out" in result.stdout


def test_more_prompts_than_fit_at_once_wait_in_throughput_and_are_refused_in_latency(
    octavo: Octavo, tiny_model: Path
) -> None:
    shape = ["--input-len", "4", "--output-len", "2", "--max-num-seqs", "2"]
    model = str(tiny_model)
    assert octavo("bench", "throughput", model, "--num-prompts", "3", *shape, *SETTINGS).exit_code == 0
    result = octavo("bench", "latency", model, "--batch-size", "3", *shape, *SETTINGS)
    assert result.exit_code == 1
    assert "--max-num-seqs is 2, but 3 requests must run at once" in result.stderr


@pytest.mark.parametrize("command", ["latency", "throughput"])
def test_only_a_prefix_that_all_prompts_share_is_cached(
    octavo: Octavo, core: ScriptedCore, command: str
) -> None:
    octavo("bench", command, "any")  # ends where it looks inside the core, which is none here
    octavo("bench", command, "any", "--prefix-len", "100")
    assert [config.cache.enable_prefix_caching for config in core.configs] == [False, True]
    assert octavo("bench", command, "any", "--enable-prefix-caching").exit_code == 2


def test_a_load_longer_than_the_context_is_refused(octavo: Octavo, tiny_model: Path) -> None:
    result = octavo("bench", "latency", str(tiny_model), "--input-len", "600", *SETTINGS)
    assert result.exit_code == 1
    assert "600 tokens" in result.stderr


def test_a_file_that_cannot_be_written_is_found_out_before_the_model_is_loaded(
    octavo: Octavo, core: ScriptedCore, tmp_path: Path
) -> None:
    path = tmp_path / "no folder" / "figures.json"
    result = octavo("bench", "latency", "any", "--json", str(path))
    assert result.stderr == f"octavo: error: {path}: No such file or directory\n"
    assert core.configs == []
