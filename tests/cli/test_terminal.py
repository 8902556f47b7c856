"""The program as a person has it: started from a shell, at a terminal, with a real (tiny) model."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

START = "from octavo.cli import main; main()"
FLAGS = ["--max-tokens", "4", "--ignore-eos", "--kv-cache-memory", "16MiB"]


def type_into(
    cache: Path, typed: str, *arguments: str, stdout_is_terminal: bool = False
) -> subprocess.CompletedProcess[bytes]:
    """Run the program with `typed` as what is typed at its terminal."""
    master, terminal = pty.openpty()
    os.write(master, typed.encode())
    environment = os.environ | {"OCTAVO_CACHE": str(cache), "TERM": "dumb"}
    try:
        return subprocess.run(
            [sys.executable, "-c", START, *arguments],
            stdin=terminal,
            stdout=terminal if stdout_is_terminal else subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            check=False,
        )
    finally:
        os.close(terminal)
        os.close(master)


def test_run_asks_for_the_prompt_on_standard_error(tiny_model: Path, tmp_path: Path) -> None:
    result = type_into(tmp_path, "Hi\n", "run", str(tiny_model), "-q", *FLAGS)
    assert result.returncode == 0, result.stderr
    assert result.stderr == b"Prompt: "
    asked = result.stdout
    told = type_into(tmp_path, "", "run", str(tiny_model), "Hi", "-q", *FLAGS)
    assert asked == told.stdout != b""


def test_chat_keeps_the_history_of_what_was_typed(tiny_model: Path, tmp_path: Path) -> None:
    typed = "Hi there\n/stats\n/quit\n"
    result = type_into(tmp_path, typed, "chat", str(tiny_model), *FLAGS, stdout_is_terminal=True)
    assert result.returncode == 0, result.stderr
    assert b"is ready, with a context of 512 tokens" in result.stderr
    assert b"of 512 tokens used" in result.stderr
    history = (tmp_path / "chat_history").read_text().splitlines()
    assert history[-3:] == ["Hi there", "/stats", "/quit"]


def test_what_a_model_writes_cannot_drive_the_terminal() -> None:
    code = r"""
from octavo.cli.output import note, write_answer
write_answer("a\x1b[2J\x07\r\x7f\x9bé\tb\n")
note("c\x1b]0;title\x07d")
"""
    master, terminal = pty.openpty()
    try:
        command = [sys.executable, "-X", "utf8", "-c", code]
        subprocess.run(command, stdout=terminal, stderr=terminal, check=True)
        shown = os.read(master, 1000).decode()
    finally:
        os.close(terminal)
        os.close(master)
    assert "a\ufffd[2J\ufffd\ufffd\ufffd\ufffdé\tb\r\n" in shown  # the newline's \r is the terminal's own
    assert "c\ufffd]0;title\ufffdd" in shown


def test_what_a_model_writes_is_piped_as_it_is() -> None:
    code = r"""
from octavo.cli.output import write_answer
write_answer("\x1b[31mred\x07\r\n")
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert result.stdout == b"\x1b[31mred\x07\r\n"
