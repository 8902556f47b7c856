"""Where the log goes: to standard error, unless the program has said otherwise."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.logs import ensure_logging, get_logger, set_up_logging

logger = get_logger("octavo.somewhere")


@contextmanager
def a_program() -> Iterator[logging.Logger]:
    """The package's logger as a program finds it at its start, without the handlers of pytest."""
    octavo, root = logging.getLogger("octavo"), logging.getLogger()
    level, handlers, root_handlers = octavo.level, octavo.handlers, root.handlers
    octavo.setLevel(logging.NOTSET)
    octavo.handlers, root.handlers = [], []
    try:
        yield octavo
    finally:
        octavo.setLevel(level)
        octavo.handlers, root.handlers = handlers, root_handlers


@pytest.fixture(autouse=True)
def _no_level_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_LOG", raising=False)


def shown() -> list[str]:
    """The lines that a message of each level becomes."""
    with redirect_stderr(io.StringIO()) as stderr:
        for level in ("debug", "info", "warning", "error"):
            getattr(logger, level)("a message")
    return stderr.getvalue().splitlines()


def lines(*levels: str) -> list[str]:
    return [f"{level} octavo.somewhere: a message" for level in levels]


@pytest.mark.parametrize("set_up", [set_up_logging, ensure_logging])
@pytest.mark.parametrize(
    ("variable", "default", "levels"),
    [
        (None, "warning", ["WARNING", "ERROR"]),
        (None, "info", ["INFO", "WARNING", "ERROR"]),
        ("", "warning", ["WARNING", "ERROR"]),
        ("debug", "info", ["DEBUG", "INFO", "WARNING", "ERROR"]),
        ("Error", "info", ["ERROR"]),
    ],
)
def test_the_environment_says_what_is_shown_and_a_default_where_it_is_silent(
    monkeypatch: pytest.MonkeyPatch, set_up: object, variable: str | None, default: str, levels: list[str]
) -> None:
    if variable is not None:
        monkeypatch.setenv("OCTAVO_LOG", variable)
    with a_program():
        set_up(default)
        assert shown() == lines(*levels)


def test_set_up_again_it_shows_more_if_asked_to_and_nothing_twice() -> None:
    with a_program():
        set_up_logging()
        ensure_logging("info")
        assert shown() == lines("INFO", "WARNING", "ERROR")
        ensure_logging("warning")
        assert shown() == lines("INFO", "WARNING", "ERROR"), "another engine still wants it"


def test_a_level_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_LOG", "loud")
    refused = "OCTAVO_LOG is 'loud'; it must be one of debug, info, warning, error"
    with a_program(), pytest.raises(ConfigError, match=refused):
        ensure_logging("warning")


@pytest.mark.parametrize("name", ["root", "octavo"])
def test_a_program_that_has_handlers_of_its_own_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("OCTAVO_LOG", "debug")
    theirs = logging.StreamHandler(io.StringIO())
    with a_program() as octavo:
        logging.getLogger(name).addHandler(theirs)
        ensure_logging("info")
        assert shown() == []
        assert octavo.level == logging.NOTSET
        assert octavo.handlers == ([theirs] if name == "octavo" else [])
    assert theirs.stream.getvalue().splitlines() == ["a message"] * 2, "from a warning on: the root's level"


@pytest.mark.parametrize("name", ["root", "octavo"])
def test_a_program_that_sets_up_handlers_later_sees_each_line_once(name: str) -> None:
    theirs = logging.StreamHandler(io.StringIO())
    with a_program():
        ensure_logging("warning")
        logging.getLogger(name).addHandler(theirs)
        ensure_logging("info")
        assert shown() == []
        logging.getLogger(name).removeHandler(theirs)
        assert shown() == lines("WARNING", "ERROR")
    assert theirs.stream.getvalue().splitlines() == ["a message"] * 2


def test_a_handler_that_does_not_see_the_log_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_program() as octavo:
        ensure_logging("warning")
        monkeypatch.setattr(octavo, "propagate", False)
        logging.getLogger().addHandler(logging.StreamHandler(io.StringIO()))
        assert shown() == lines("WARNING", "ERROR")


def test_a_level_that_the_program_has_set_stays() -> None:
    with a_program() as octavo:
        octavo.setLevel(logging.ERROR)
        for _ in range(2):
            ensure_logging("info")
            assert (octavo.level, octavo.handlers) == (logging.ERROR, [])


@pytest.mark.parametrize(
    ("level", "shown_levels"),
    [(logging.ERROR, ["ERROR"]), (logging.DEBUG, ["DEBUG", "INFO", "WARNING", "ERROR"])],
)
def test_a_level_that_the_program_sets_later_stays_too(level: int, shown_levels: list[str]) -> None:
    with a_program() as octavo:
        ensure_logging("warning")
        octavo.setLevel(level)
        for _ in range(2):
            ensure_logging("info")
            assert shown() == lines(*shown_levels)


def run_program(code: str, *arguments: str, **environment: str) -> str:
    """What a program of its own writes to standard error."""
    program = [sys.executable, "-c", code, *arguments]
    given = {name: value for name, value in os.environ.items() if name != "OCTAVO_LOG"} | environment
    return subprocess.run(program, capture_output=True, text=True, check=True, env=given).stderr


ENGINE = """
import sys
from octavo import LLM, SamplingParams
with LLM(sys.argv[1], kv_cache_memory="4MiB", log_stats={log_stats}) as llm:
    llm.generate("a", SamplingParams(max_tokens=3), use_tqdm=False)
"""


def test_statistics_are_shown_without_further_ado(tiny_model: Path) -> None:
    stderr = run_program(ENGINE.format(log_stats=True), str(tiny_model))
    assert "INFO octavo.engine.statistics_log: prompt" in stderr


def test_the_log_is_shown_from_the_level_in_the_environment(tiny_model: Path) -> None:
    assert run_program(ENGINE.format(log_stats=False), str(tiny_model)) == ""
    stderr = run_program(ENGINE.format(log_stats=False), str(tiny_model), OCTAVO_LOG="info")
    assert "INFO octavo.engine.build: the KV cache has" in stderr


def test_importing_changes_nothing() -> None:
    run_program(
        "import logging, octavo\n"
        "from octavo import LLM\n"
        "assert not logging.getLogger('octavo').hasHandlers()\n"
        "assert logging.getLogger('octavo').level == logging.NOTSET\n",
        OCTAVO_LOG="debug",
    )
