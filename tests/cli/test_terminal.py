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
