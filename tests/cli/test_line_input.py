from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.cli.line_input import (
    CONTINUATION,
    PROMPT,
    ReadLine,
    UnfinishedMessageError,
    line_reader,
    read_message,
)


def typing(lines: list[str], prompts: list[str] | None = None) -> ReadLine:
    remaining: Iterator[str] = iter(lines)

    def read_line(prompt: str) -> str:
        if prompts is not None:
            prompts.append(prompt)
        for line in remaining:
            return line
        raise EOFError

    return read_line


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["Hi"], "Hi"),
        ([""], ""),
        (["one \\", "two\\", "three"], "one \ntwo\nthree"),
        (['"""one', "two", 'three"""'], "one\ntwo\nthree"),
        (['"""', "one", "", "two", '"""'], "one\n\ntwo"),
        (['  """one line"""'], "one line"),
        (['"""a\\', 'b"""'], "a\\\nb"),
        (['say """this"""'], 'say """this"""'),
    ],
)
def test_messages_may_span_lines(lines: list[str], message: str) -> None:
    read_line = typing([*lines, "next"])
    assert read_message(read_line) == message
    assert read_line("") == "next"


def test_the_prompt_shows_that_a_message_goes_on() -> None:
    prompts: list[str] = []
    read_message(typing(["a\\", "b"], prompts))
    read_message(typing(['"""', '"""'], prompts))
    assert prompts == [PROMPT, CONTINUATION] * 2


def test_the_end_of_input_is_told_from_an_end_within_a_message() -> None:
    with pytest.raises(EOFError) as caught:
        read_message(typing([]))
    assert not isinstance(caught.value, UnfinishedMessageError)
    for lines in (["a\\"], ['"""a'], ['"""']):
        with pytest.raises(UnfinishedMessageError):
            read_message(typing(lines))


def test_no_prompts_are_written_and_no_history_is_kept_away_from_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi\n"))
    with line_reader(tmp_path / "history") as read_line:
        assert read_line(PROMPT) == "Hi"
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []
