"""The script behind the README's table of speeds, with programs that print what the other engines print."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/compare_engines.py"
LLAMA_BENCH = """#!/bin/sh
echo '[{"build_number": 6000, "build_commit": "abc123", "avg_ts": 50.0}]'
"""
LLAMA_BATCHED_BENCH = """#!/bin/sh
cat <<'END'
main: n_kv_max = 16384
|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|   128 |     64 |   64 |  12288 |    1.000 |   8192.0 |    2.000 |   2048.0 |    3.000 |   4096.0 |
END
"""
VLLM = """
class SamplingParams:
    def __init__(self, **given):
        self.max_tokens = given["max_tokens"]

class LLM:
    def __init__(self, **given): pass
    def generate(self, prompts, params, use_tqdm):
        import time
        time.sleep(0.001 * params.max_tokens)

__version__ = "1.2.3"
"""


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare_engines", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    for name, text in {"llama-bench": LLAMA_BENCH, "llama-batched-bench": LLAMA_BATCHED_BENCH}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def test_octavo_is_measured_beside_llama_cpp_and_the_machine_is_named(tiny_model: Path, llama: Path) -> None:
    arguments = [str(tiny_model), "--llama", str(llama), "--rounds", "1", "--threads", "1", "--work", "batch"]
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    machine, octavo, llama_cpp, _, batch = done.stdout.splitlines()
    assert "1 threads" in machine
    assert octavo.startswith("Octavo ")
    assert "bench latency" in octavo
    assert llama_cpp.startswith("llama.cpp build 6000 (abc123): llama-bench -m")
    assert "llama.cpp 4096.0 (Octavo / llama.cpp: " in batch


def test_each_work_of_llama_cpp_is_read_from_its_own_program(script: ModuleType, llama: Path) -> None:
    engine = script.LlamaCpp(llama, "model.gguf", 2)
    assert [engine.measure(work) for work in script.WORK] == [50.0, 50.0, 4096.0]


def test_vllm_is_asked_in_an_environment_of_its_own(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm.py").write_text(VLLM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    engine = script.Vllm(sys.executable, "folder", 1)
    assert engine.describe().startswith("1.2.3: ")
    assert all(engine.measure(work) > 0 for work in script.WORK)
    engine.close()


def test_ratios_are_taken_round_by_round(script: ModuleType) -> None:
    class Scripted:
        def __init__(self, *figures: float) -> None:
            self.figures = list(figures)

        def measure(self, work: str) -> float:
            return self.figures.pop(0)

    engines = {"Octavo": Scripted(10, 40, 20), "vLLM": Scripted(10, 10, 10)}
    line = script.compare(engines, "decode", 3)
    assert line.split() == ["decode", "Octavo", "20.0", "vLLM", "10.0", "(Octavo", "/", "vLLM:", "2.00)"]
