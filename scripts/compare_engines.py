"""Measures Octavo beside llama.cpp and vLLM on the same work: what the README's table of speeds is made with.

    python scripts/compare_engines.py MODEL.gguf                                     # Octavo alone
    python scripts/compare_engines.py MODEL.gguf --llama FOLDER                      # and llama.cpp
    python scripts/compare_engines.py MODEL.gguf --vllm PYTHON --vllm-model FOLDER   # and vLLM

--llama        a folder with llama-bench and llama-batched-bench
--vllm         a Python in whose environment vLLM for CPU is installed
--vllm-model   the same model as a Hugging Face folder; vLLM runs it in bfloat16

The engines take turns, because the speed of a shared machine drifts by half within seconds. A figure is the
median of the rounds, in tokens a second; the ratio beside it is the median of the ratios of each round. The
output begins with everything that is needed to repeat the measurement: versions, the CPU, the number of
threads, the commands.

decode    one request: 8 prompt tokens, 128 new ones; the new ones after the first are counted
prefill   one prompt of 512 tokens
batch     64 requests of 128 prompt tokens and 64 new ones; all 12,288 are counted
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

WORK = ("decode", "prefill", "batch")
OCTAVO = Path(sys.executable).with_name("octavo")

# Runs in vLLM's environment: prints its version, then a figure for each name of a work on standard input. The
# time of `generate` with one new token is that of prefill; decode is measured by the difference to it.
VLLM_PROGRAM = r"""
import os, random, sys, time
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
import vllm

def main():
    llm = vllm.LLM(model=sys.argv[1], dtype="bfloat16", max_model_len=2048, enable_prefix_caching=False,
                   max_num_seqs=64, max_num_batched_tokens=2048)
    rng = random.Random(0)

    def seconds(num_prompts, input_len, output_len):
        prompts = [{"prompt_token_ids": [rng.randint(100, 40000) for _ in range(input_len)]}
                   for _ in range(num_prompts)]
        params = vllm.SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - start

    measures = {
        "decode": lambda: 127 / (seconds(1, 8, 128) - seconds(1, 8, 1)),
        "prefill": lambda: 512 / seconds(1, 512, 1),
        "batch": lambda: 64 * 192 / seconds(64, 128, 64),
    }
    seconds(1, 16, 16)  # warm up
    print("VERSION", vllm.__version__, flush=True)
    for line in sys.stdin:
        print("VALUE", measures[line.strip()](), flush=True)

if __name__ == "__main__":
    main()
"""


class Engine(Protocol):
    """What is measured."""

    def describe(self) -> str:
        """The version, and how the engine is called."""

    def measure(self, work: str) -> float:
        """Tokens a second."""


class Octavo:
    """`octavo bench`."""

    def __init__(self, model: str, threads: int) -> None:
        self._model = model
        self._threads = threads

    def describe(self) -> str:
        version = _output([str(OCTAVO), "--version"]).strip()
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True
        ).stdout.strip()
        return f"{version}, commit {commit or 'unknown'}: {' '.join(self._command('decode'))}"

    def measure(self, work: str) -> float:
        figure = {"decode": "decode", "prefill": "prefill", "batch": "total"}[work]
        return float(json.loads(_output(self._command(work)))[f"{figure}_tokens_per_s"])

    def _command(self, work: str) -> list[str]:
        arguments = {
            "decode": "latency MODEL --batch-size 1 --input-len 8 --output-len 128",
            "prefill": "latency MODEL --batch-size 1 --input-len 512 --output-len 1",
            "batch": "throughput MODEL --num-prompts 64 --input-len 128 --output-len 64",
        }[work].split()
        arguments[1] = self._model
        return [str(OCTAVO), "bench", *arguments, "--threads", str(self._threads), "--json", "-"]


class LlamaCpp:
    """`llama-bench`, and `llama-batched-bench` for many requests."""

    def __init__(self, folder: Path, model: str, threads: int) -> None:
        self._folder = folder.absolute()
        self._model = model
        self._threads = str(threads)

    def describe(self) -> str:
        (result,) = json.loads(self._run(*self._bench("-p", "0", "-n", "1")))
        build = f"{result.get('build_number', '?')} ({result.get('build_commit', '?')})"
        return f"build {build}: {' '.join(self._bench('-p', '0', '-n', '128'))}"

    def measure(self, work: str) -> float:
        if work == "batch":
            return self._measure_batch()
        sizes = ("-p", "0", "-n", "128") if work == "decode" else ("-p", "512", "-n", "0")
        (result,) = json.loads(self._run(*self._bench(*sizes)))
        return float(result["avg_ts"])

    def _measure_batch(self) -> float:
        sizes = ["-c", "16384", "-b", "2048", "-ub", "512", "-npp", "128", "-ntg", "64", "-npl", "64"]
        table = self._run("llama-batched-bench", "-m", self._model, "-t", self._threads, *sizes)
        rows = [
            [cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if "|" in line
        ]
        heads = next(row for row in rows if "S t/s" in row)
        return float(next(row for row in rows if row[0] == "128")[heads.index("S t/s")])

    def _bench(self, *sizes: str) -> list[str]:
        return ["llama-bench", "-m", self._model, "-t", self._threads, "-r", "1", "-o", "json", *sizes]

    def _run(self, program: str, *arguments: str) -> str:
        return _output([str(self._folder / program), *arguments], {"LD_LIBRARY_PATH": str(self._folder)})


class Vllm:
    """A process in vLLM's environment, which loads the model once."""

    def __init__(self, python: str, model: str, threads: int) -> None:
        self._command = [python, "-c", VLLM_PROGRAM, model]
        environment = {
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(threads),
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        }
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | environment,
        )
        self._version = self._wait_for("VERSION")

    def describe(self) -> str:
        return f"{self._version}: {self._command[0]} -c VLLM_PROGRAM {self._command[-1]}"

    def measure(self, work: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(work + "\n")
        self._process.stdin.flush()
        return float(self._wait_for("VALUE"))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()  # the end of its input ends the program

    def _wait_for(self, word: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word + " "):
                return line.split()[1]
        sys.exit(f"vLLM ended before it printed {word}; run it by hand: {self._command[0]} -c 'import vllm'")


def _output(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | dict(environment or {})
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def cpu_model() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def compare(engines: Mapping[str, Engine], work: str, num_rounds: int) -> str:
    """A line of the table: the median of each engine, and Octavo's ratio to each of the others."""
    rounds = [{name: engine.measure(work) for name, engine in engines.items()} for _ in range(num_rounds)]
    cells = [f"{work:8}"]
    for name in engines:
        cell = f"{name} {statistics.median(each[name] for each in rounds):.1f}"
        if name != "Octavo":
            cell += (
                f" (Octavo / {name}: {statistics.median(each['Octavo'] / each[name] for each in rounds):.2f})"
            )
        cells.append(cell)
    return "   ".join(cells)


def main() -> None:
    """Measure what the command line asks for, and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--llama", type=Path, metavar="FOLDER")
    parser.add_argument("--vllm", metavar="PYTHON")
    parser.add_argument("--vllm-model", metavar="FOLDER")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", nargs="+", choices=WORK, default=WORK)
    given = parser.parse_args()
    if (given.vllm is None) != (given.vllm_model is None):
        parser.error("--vllm and --vllm-model belong together")

    engines: dict[str, Engine] = {"Octavo": Octavo(given.model, given.threads)}
    if given.llama is not None:
        engines["llama.cpp"] = LlamaCpp(given.llama, given.model, given.threads)
    if given.vllm is not None:
        vllm = Vllm(given.vllm, given.vllm_model, given.threads)
        atexit.register(vllm.close)
        engines["vLLM"] = vllm

    print(
        f"{cpu_model()}, {given.threads} threads, {platform.platform()}, Python {platform.python_version()}"
    )
    for name, engine in engines.items():
        print(f"{name} {engine.describe()}")
    print(f"tokens a second, medians of {given.rounds} rounds:")
    for work in given.work:
        print(compare(engines, work, given.rounds), flush=True)


if __name__ == "__main__":
    main()
