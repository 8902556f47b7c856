from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import octavo as package
from octavo.cli.program import COMMANDS
from tests.scripted_program import Octavo

START = "from octavo.cli import main; main()"


def start(*arguments: str, code: str = START, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], text=True, check=False, **options)


def test_the_help_names_every_command_and_shows_examples(octavo: Octavo) -> None:
    result = octavo("--help")
    assert result.exit_code == 0
    for name, entry in COMMANDS.items():
        assert f"{entry.section}:" in result.stdout
        assert f"  {name} " in result.stdout
        assert entry.summary in result.stdout
    assert 'octavo run smollm2 "Why is the sky blue?"' in result.stdout


@pytest.mark.parametrize("arguments", [[], ["bench"]])
def test_without_a_command_the_help_is_shown(octavo: Octavo, arguments: list[str]) -> None:
    result = octavo(*arguments)
    assert result.exit_code == 0
    assert result.stdout == octavo(*arguments, "--help").stdout


@pytest.mark.parametrize("columns", [40, 80, 110])
def test_the_help_is_as_wide_as_the_terminal(
    octavo: Octavo, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for arguments in ([], ["run"]):
        lines = octavo(*arguments, "--help").stdout.splitlines()
        # Commands to copy and the names of flags are not broken up.
        prose = [line for line in lines if not line.lstrip().startswith(("octavo ", "--"))]
        assert columns * 0.8 <= max(map(len, prose)) <= columns


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(octavo: Octavo, name: str) -> None:
    result = octavo(name, "--help")
    assert result.exit_code == 0
    assert f"Usage: octavo {name}" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (["--help"], {"numpy", "tokenizers", "msgspec", "rich", "huggingface_hub", "jinja2"}),
        (["run", "--help"], {"numpy", "tokenizers", "rich", "huggingface_hub", "jinja2"}),
    ],
)
def test_help_imports_nothing_heavy(arguments: list[str], refused: set[str]) -> None:
    code = f"""
import sys
from octavo.cli import main
try:
    main()
finally:
    loaded = {refused!r} & set(sys.modules)
    assert not loaded, loaded
"""
    result = start(*arguments, code=code, capture_output=True)
    assert result.returncode == 0, result.stderr
    assert "Usage: octavo" in result.stdout


def test_the_version_is_the_packages(octavo: Octavo) -> None:
    assert octavo("--version").stdout == f"octavo {package.__version__}\n"


def test_an_unknown_command_suggests_the_nearest(octavo: Octavo) -> None:
    result = octavo("cat")
    assert result.exit_code == 2
    assert "there is no command 'cat'; did you mean 'chat'?" in result.stderr
    assert "the commands are run, chat" in octavo("xyzzy").stderr


def test_an_unknown_flag_suggests_the_nearest(octavo: Octavo) -> None:
    result = octavo("run", "smollm2", "Hi", "--max-num-seq", "4")
    assert result.exit_code == 2
    assert "--max-num-seqs" in result.stderr


def test_an_error_is_a_message_and_exit_status_1(octavo: Octavo) -> None:
    result = octavo("run", "./nowhere.gguf", "Hi")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("octavo: error: there is no file or folder './nowhere.gguf'")
    assert "Traceback" not in result.stderr


def test_the_debug_log_has_the_traceback_of_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_LOG", "debug")
    result = start("pull", "./nowhere.gguf", capture_output=True)
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert "octavo: error: there is no file or folder './nowhere.gguf'" in result.stderr


def test_an_unknown_log_level_is_an_error(octavo: Octavo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_LOG", "loud")
    result = octavo("models")
    assert result.exit_code == 1
    assert "octavo: error: OCTAVO_LOG is 'loud'" in result.stderr


def test_an_empty_log_level_is_none(octavo: Octavo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_LOG", "")
    assert octavo("models").exit_code == 0


def raiser(error: BaseException) -> object:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    return fail


def test_an_unexpected_exception_is_named_and_says_how_to_see_more(
    octavo: Octavo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.cli.models.available_models", raiser(KeyError("lost")))
    result = octavo("models")
    assert result.exit_code == 1
    expected = "octavo: error: unexpected KeyError: 'lost'; set OCTAVO_LOG=debug to see where\n"
    assert result.stderr == expected


def test_ctrl_c_ends_a_command_quietly_with_the_shells_status(
    octavo: Octavo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.cli.models.pull_model", raiser(KeyboardInterrupt()))
    result = octavo("pull", "smollm2")
    assert result.exit_code == 130
    assert result.stderr == "\n"


def test_ctrl_c_before_a_command_begins_ends_the_program_quietly() -> None:
    code = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from octavo.cli import main
main()
"""
    result = start("models", code=code, capture_output=True)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"], []])
def test_a_full_disk_behind_the_output_is_one_clear_line(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        result = start(*arguments, stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 1
    assert result.stderr == "octavo: error: input or output failed: No space left on device\n"


def start_without(descriptor: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program with one of its standard streams closed."""
    code = f"import os, sys; os.close({descriptor}); os.execv(sys.executable, sys.argv[1:])"
    return start(sys.executable, "-c", START, *arguments, code=code, capture_output=True)


def test_closed_standard_input_is_empty() -> None:
    result = start_without(0, "run", "smollm2")
    assert result.returncode == 2
    assert "the prompt is empty" in result.stderr


def test_closed_standard_output_is_nowhere() -> None:
    result = start_without(1, "models")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_closed_standard_error_is_nowhere(tmp_path: Path) -> None:
    result = start_without(2, "pull", str(tmp_path / "nothing.gguf"))
    assert (result.returncode, result.stdout, result.stderr) == (1, "", "")


def test_a_reader_that_goes_away_ends_the_program_without_a_word() -> None:
    reading_end, writing_end = os.pipe()
    os.close(reading_end)
    try:
        result = start("--help", stdout=writing_end, stderr=subprocess.PIPE)
    finally:
        os.close(writing_end)
    assert result.stderr == ""


def test_text_that_the_terminal_cannot_show_is_replaced(tmp_path: Path) -> None:
    model = tmp_path / "λ-model.gguf"
    model.write_bytes(b"GGUF")
    environment = os.environ | {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    result = start("pull", str(model), capture_output=True, env=environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{tmp_path}/?-model.gguf\n"
