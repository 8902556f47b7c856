from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from octavo.cli import diagnosis
from octavo.cli.diagnosis import Finding, Level
from octavo.errors import UnsupportedError
from octavo.hub import ALIASES
from octavo.machine.description import Machine, parse_cpuinfo, parse_sysctl, read_machine
from tests.scripted_program import Octavo
from tests.tiny_gemma3 import write_tiny_gemma3

X86 = """\
processor\t: 0
model name\t: Example Xeon @ 2.70GHz
flags\t\t: fpu sse4_2 avx avx2 avx512f avx512_bf16 avx512_vnni amx_tile amx_int8

processor\t: 1
model name\t: another
flags\t\t: fpu
"""
ARM = """\
processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd asimddp i8mm bf16
CPU implementer\t: 0x41
"""
APPLE = """\
machdep.cpu.brand_string: Apple M2
hw.optional.neon: 1
hw.optional.arm.FEAT_DotProd: 1
hw.optional.arm.FEAT_BF16: 1
hw.optional.arm.FEAT_I8MM: 0
"""
INTEL_MAC = """\
machdep.cpu.brand_string: Intel(R) Core(TM) i7
machdep.cpu.features: FPU SSE4.2 AVX1.0
machdep.cpu.leaf7_features: BMI1 AVX2
"""
GIB = 2**30
HEALTHY = Machine("Linux 6.1 x86_64", "Example", ("AVX2",), 8, 8, None, 16 * GIB, 12 * GIB, 12 * GIB)

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is read on Linux alone")


class FakeTree:
    """/proc and /sys/fs/cgroup in a folder."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroup = folder / "proc", folder / "cgroup"
        self.write(self.proc / "cpuinfo", X86)
        self.write(
            self.proc / "meminfo", f"MemTotal: {16 * 2**20} kB\nMemAvailable: {12 * 2**20} kB\nHuge: 0\n"
        )
        self.write(self.proc / "self/cgroup", "")

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def read(self) -> Machine:
        return read_machine(self.proc, self.cgroup)


@pytest.fixture
def tree(tmp_path: Path) -> FakeTree:
    return FakeTree(tmp_path)


@pytest.mark.parametrize(
    ("text", "model", "features"),
    [
        (X86, "Example Xeon @ 2.70GHz", {"avx2", "avx512f", "amx_tile"}),
        (ARM, "", {"asimd", "i8mm", "bf16"}),
        ("", "", set()),
    ],
)
def test_cpuinfo_gives_the_first_processors_model_and_features(
    text: str, model: str, features: set[str]
) -> None:
    found_model, found = parse_cpuinfo(text)
    assert found_model == model
    assert found >= features


def test_sysctl_gives_the_model_and_the_features_that_are_there() -> None:
    model, features = parse_sysctl(APPLE)
    assert model == "Apple M2"
    expected = {"hw.optional.neon", "hw.optional.arm.feat_dotprod", "hw.optional.arm.feat_bf16"}
    assert features == expected
    model, features = parse_sysctl(INTEL_MAC)
    assert model == "Intel(R) Core(TM) i7"
    assert "avx2" in features


@only_linux
def test_the_machine_is_what_proc_says(tree: FakeTree) -> None:
    machine = tree.read()
    assert machine.cpu_model == "Example Xeon @ 2.70GHz"
    assert machine.instruction_sets == ("AVX2", "AVX-512", "AVX-512 BF16", "VNNI", "AMX")
    assert machine.memory_bytes == 16 * GIB
    assert machine.available_memory_bytes == machine.free_memory_bytes == 12 * GIB
    assert machine.cpu_quota is None
    assert 1 <= machine.num_usable_cpus == machine.num_effective_cpus <= machine.num_cpus


@only_linux
def test_the_names_of_arms_features_are_known(tree: FakeTree) -> None:
    tree.write(tree.proc / "cpuinfo", ARM)
    assert tree.read().instruction_sets == ("NEON", "DotProd", "BF16", "I8MM")


@only_linux
def test_the_tightest_cpu_quota_of_the_groups_above_counts(tree: FakeTree) -> None:
    tree.write(tree.proc / "self/cgroup", "0::/pod/box\n")
    tree.write(tree.cgroup / "pod/box/cpu.max", "300000 100000\n")
    tree.write(tree.cgroup / "pod/cpu.max", "50000 100000\n")
    tree.write(tree.cgroup / "cpu.max", "max 100000\n")
    machine = tree.read()
    assert machine.cpu_quota == machine.num_effective_cpus == 0.5


@only_linux
def test_cpu_quotas_of_control_groups_version_1_count(tree: FakeTree) -> None:
    tree.write(tree.proc / "self/cgroup", "4:cpu,cpuacct:/box\n3:memory:/box\n")
    tree.write(tree.cgroup / "cpu/box/cpu.cfs_quota_us", "150000\n")
    tree.write(tree.cgroup / "cpu/box/cpu.cfs_period_us", "100000\n")
    tree.write(tree.cgroup / "cpu/cpu.cfs_quota_us", "-1\n")
    tree.write(tree.cgroup / "cpu/cpu.cfs_period_us", "100000\n")
    assert tree.read().cpu_quota == 1.5


@only_linux
def test_a_control_groups_memory_limit_counts(tree: FakeTree) -> None:
    tree.write(tree.proc / "self/cgroup", "0::/box\n")
    tree.write(tree.cgroup / "box/memory.max", f"{2 * GIB}\n")
    tree.write(tree.cgroup / "box/memory.current", f"{GIB}\n")
    tree.write(tree.cgroup / "box/memory.stat", "inactive_file 0\n")
    machine = tree.read()
    assert (machine.free_memory_bytes, machine.available_memory_bytes) == (GIB, 12 * GIB)
    assert "limited by a control group" in diagnosis.check_memory(machine).text


def level_of(findings: list[Finding], topic: str) -> Level:
    (finding,) = [finding for finding in findings if finding.topic == topic]
    assert finding.level is Level.OK or finding.advice
    return finding.level


@pytest.mark.parametrize(
    ("change", "topic", "level"),
    [
        ({}, "cpu", Level.OK),
        ({"cpu_quota": 2.0}, "cpu", Level.OK),
        ({"cpu_quota": 0.5}, "cpu", Level.WARNING),
        ({}, "instructions", Level.OK),
        ({"instruction_sets": ()}, "instructions", Level.WARNING),
    ],
)
def test_a_slow_processor_is_a_warning(change: dict[str, object], topic: str, level: Level) -> None:
    findings = list(diagnosis.check_cpu(dataclasses.replace(HEALTHY, **change)))
    assert level_of(findings, topic) is level


def test_little_memory_is_a_warning() -> None:
    assert diagnosis.check_memory(HEALTHY).level is Level.OK
    scarce = diagnosis.check_memory(dataclasses.replace(HEALTHY, free_memory_bytes=GIB // 2))
    assert level_of([scarce], "memory") is Level.WARNING


def test_dependencies_are_those_of_the_package_without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = ["click<9,>=8.1", "ml-dtypes>=0.5", "torch==2; extra == 'test'", "rich"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requirements)
    topics = [finding.topic for finding in diagnosis.check_versions()]
    assert topics == ["python", "octavo", "click", "ml-dtypes", "rich"]


def test_a_tree_that_is_not_installed_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", requires)
    assert level_of(list(diagnosis.check_versions()), "dependencies") is Level.WARNING


def test_a_dependency_that_is_missing_or_broken_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    assert diagnosis.check_dependency("click").level is Level.OK
    missing = diagnosis.check_dependency("no-such-package")
    assert (missing.level, missing.text) == (Level.PROBLEM, "missing")
    assert missing.advice == "pip install --force-reinstall no-such-package"
    monkeypatch.setitem(sys.modules, "click", None)
    broken = diagnosis.check_dependency("click")
    assert broken.level is Level.PROBLEM
    assert broken.text.startswith("does not load: ")


def test_a_numpy_without_blas_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert diagnosis.check_blas().level is Level.OK
    monkeypatch.setattr("numpy.show_config", lambda mode: {"Build Dependencies": {"blas": {"found": False}}})
    assert level_of([diagnosis.check_blas()], "blas") is Level.WARNING


def test_a_numpy_that_does_not_load_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert diagnosis.check_blas().level is Level.PROBLEM


def test_the_cache_is_measured_and_need_not_exist(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/file").write_bytes(bytes(2500))
    (cache, _) = diagnosis.check_cache(tmp_path)
    assert (cache.level, cache.text) == (Level.OK, f"{tmp_path}, 2.5 kB")
    (cache, _) = diagnosis.check_cache(tmp_path / "not/there")
    assert (cache.level, cache.text) == (Level.OK, f"{tmp_path}/not/there, 0 B")


def test_a_file_in_the_caches_place_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        (finding,) = diagnosis.check_cache(folder)
        assert finding.level is Level.WARNING
        assert finding.text == f"{tmp_path / 'file'} is a file: no model can be fetched"
        assert "OCTAVO_CACHE" in finding.advice


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert level_of(list(diagnosis.check_cache(tmp_path)), "cache") is Level.WARNING


def test_a_full_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**6))
    assert level_of(list(diagnosis.check_cache(tmp_path)), "disk") is Level.WARNING


def test_the_default_model_is_here_or_can_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    alias = ALIASES["smollm2"]
    missing = diagnosis.check_model(alias)
    assert (missing.level, missing.text) == (Level.OK, "smollm2 is not here yet")
    assert "octavo pull smollm2" in missing.advice
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert level_of([diagnosis.check_model(alias)], "model") is Level.WARNING
    path = tmp_path / "models/smollm2" / alias.file_name
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(alias.size_bytes)
    assert diagnosis.check_model(alias).text == f"smollm2 is here: {path}"


FINDINGS = [
    Finding("cpu", Level.OK, "Example"),
    Finding("memory", Level.WARNING, "little", "close other programs"),
    Finding("numpy", Level.PROBLEM, "missing", "pip install numpy"),
]


@pytest.mark.parametrize(
    ("count", "exit_code", "verdict"),
    [
        (1, 0, "Octavo can run here."),
        (2, 0, "1 warning found."),
        (3, 1, "1 warning and 1 problem found."),
    ],
)
def test_only_a_problem_fails(
    octavo: Octavo, monkeypatch: pytest.MonkeyPatch, count: int, exit_code: int, verdict: str
) -> None:
    monkeypatch.setattr("octavo.cli.doctor.diagnose", lambda machine: FINDINGS[:count])
    result = octavo("doctor")
    assert result.exit_code == exit_code
    assert result.stdout.splitlines()[-1] == verdict


def test_each_line_says_what_is_wrong_and_the_next_what_to_do(
    octavo: Octavo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.cli.doctor.diagnose", lambda machine: FINDINGS)
    assert octavo("doctor").stdout.splitlines()[:5] == [
        "ok       cpu     Example",
        "warning  memory  little",
        "                 -> close other programs",
        "problem  numpy   missing",
        "                 -> pip install numpy",
    ]


def test_the_findings_are_there_as_json(octavo: Octavo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.cli.doctor.diagnose", lambda machine: FINDINGS)
    monkeypatch.setattr("octavo.cli.doctor.read_machine", lambda: HEALTHY)
    result = octavo("doctor", "--json")
    assert result.exit_code == 1
    shown = json.loads(result.stdout)
    assert shown["machine"]["cpu_model"] == "Example"
    expected = {"topic": "memory", "level": "warning", "text": "little", "advice": "close other programs"}
    assert shown["findings"][1] == expected


def test_this_machine_has_no_problem(octavo: Octavo) -> None:
    result = octavo("doctor")
    assert result.exit_code == 0, result.stdout
    for topic in ("system", "cpu", "memory", "python", "octavo", "blas", "cache", "disk", "model"):
        assert f" {topic} " in result.stdout


def test_the_program_of_a_model_is_shown_instruction_by_instruction(octavo: Octavo, tiny_model: Path) -> None:
    text = octavo("doctor", "--program", str(tiny_model)).stdout
    assert text.splitlines()[0] == "tokens to hidden states:"
    assert (
        "norm(%1; model.layers.0.input_layernorm.weight) * model.layers.0.self_attn.q_proj.weight F32" in text
    )
    assert "layer 1, 4 heads on 2 of 16, causal" in text
    assert "hidden * lm_head.weight F32 272x64" in text


def test_the_program_of_gemma3_shows_what_is_added_scaled_and_gated(octavo: Octavo, tmp_path: Path) -> None:
    lines = octavo("doctor", "--program", str(write_tiny_gemma3(tmp_path))).stdout.splitlines()
    assert lines[1].endswith("token_ids of model.embed_tokens.weight F32 272x64, times 8")
    assert any(
        "1 times model.layers.0.post_attention_layernorm.weight, eps 1e-06 + %1" in line for line in lines
    )
    assert any(
        "gate_proj.weight F32 96x64 gelu_tanh gates model.layers.0.mlp.up_proj" in line for line in lines
    )
    assert sum("causal, window 24" in line for line in lines) == 6


def test_a_model_that_has_no_program_is_an_error(octavo: Octavo, tmp_path: Path) -> None:
    result = octavo("doctor", "--program", str(tmp_path / "none.gguf"))
    assert result.exit_code == 1
    assert "none.gguf" in result.stderr


def test_the_native_backend_is_named_with_what_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_NATIVE", raising=False)
    library = SimpleNamespace(usable_instruction_sets=lambda: ["portable", "avx2"])
    monkeypatch.setattr(diagnosis, "load_library", lambda: library)
    expected = Finding("native", Level.OK, "avx2; OCTAVO_NATIVE can force portable, avx2")
    assert diagnosis.check_native() == expected
    monkeypatch.setenv("OCTAVO_NATIVE", "nonsense")
    finding = diagnosis.check_native()
    assert finding.level is Level.PROBLEM
    assert "'nonsense'" in finding.text


def test_a_native_backend_that_is_not_built_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise UnsupportedError("the native backend is not built here")

    monkeypatch.setattr(diagnosis, "load_library", fail)
    finding = diagnosis.check_native()
    assert (finding.level, finding.text) == (Level.WARNING, "the native backend is not built here")
