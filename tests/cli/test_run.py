from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.scripted_program import CONTEXT, Octavo, ScriptedCore

SPEEDS = re.compile(r"prompt: \d+ tokens.* \| answer: \d+ tokens.* \| first token after [\d.]+ s\n")


def test_standard_output_is_the_answer_and_nothing_else(octavo: Octavo, core: ScriptedCore) -> None:
    result = octavo("run", "smollm2", "What is the capital of France?")
    assert result.exit_code == 0
    assert result.stdout == "Paris.\n"
    assert SPEEDS.fullmatch(result.stderr)


def test_an_answer_that_ends_in_a_newline_gets_no_second_one(octavo: Octavo, core: ScriptedCore) -> None:
    core.answers = ["Paris.\n"]
    assert octavo("run", "smollm2", "Hi").stdout == "Paris.\n"


def test_quiet_hides_the_speeds(octavo: Octavo, core: ScriptedCore) -> None:
    assert octavo("run", "smollm2", "Hi", "--quiet").stderr == ""


def test_the_prompt_is_a_message_of_the_models_chat_template(octavo: Octavo, core: ScriptedCore) -> None:
    octavo("run", "smollm2", "Hi", "--system", "Be brief.")
    assert core.prompts == ["<|turn|>system: Be brief.<|end|><|turn|>user: Hi<|end|><|turn|>assistant: "]


def test_a_chat_template_can_be_given(octavo: Octavo, core: ScriptedCore) -> None:
    octavo("run", "smollm2", "Hi", "--chat-template", "[{{ messages[0].content }}]")
    assert core.prompts == ["[Hi]"]


def test_raw_continues_the_text_as_it_is(octavo: Octavo, core: ScriptedCore) -> None:
    octavo("run", "smollm2", "--raw", "Once upon")
    assert core.prompts == ["Once upon"]


def test_raw_and_system_exclude_each_other(octavo: Octavo, core: ScriptedCore) -> None:
    result = octavo("run", "smollm2", "--raw", "--system", "Be brief.", "Once upon")
    assert result.exit_code == 2
    assert "--system and --raw exclude each other" in result.stderr


@pytest.mark.parametrize("flag", [[], ["--raw"]])
def test_an_empty_system_message_is_none(octavo: Octavo, core: ScriptedCore, flag: list[str]) -> None:
    core.answers = ["One", "Two"]
    for arguments in (["--system", ""], []):
        assert octavo("run", "smollm2", "Hi", *flag, *arguments).exit_code == 0
    with_empty, without = core.prompts
    assert with_empty == without


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["\udcff"], "PROMPT"),
        (["Hi", "--system", "\udcff"], "--system"),
        (["Hi", "--stop", "\udcff"], "--stop"),
    ],
)
def test_an_argument_that_is_no_text_is_refused(
    octavo: Octavo, core: ScriptedCore, arguments: list[str], named: str
) -> None:
    result = octavo("run", "smollm2", *arguments)
    assert result.exit_code == 2
    assert named in result.stderr.splitlines()[-1]
    assert "it is not valid UTF-8" in result.stderr
    assert core.configs == []


@pytest.fixture
def without_chat_template(core: ScriptedCore) -> None:
    core.tokenizer.chat_template = None


@pytest.mark.usefixtures("without_chat_template")
def test_a_model_without_chat_template_continues_the_text(octavo: Octavo, core: ScriptedCore) -> None:
    result = octavo("run", "base", "Once upon", "-q")
    assert core.prompts == ["Once upon"]
    assert result.stdout == "Paris.\n"
    assert result.stderr == "octavo: base has no chat template; it continues the prompt as it is\n"


@pytest.mark.usefixtures("without_chat_template")
def test_system_needs_a_chat_template(octavo: Octavo, core: ScriptedCore) -> None:
    result = octavo("run", "base", "Once upon", "--system", "Be brief.")
    assert result.exit_code == 2
    assert "base has no chat template for --system" in result.stderr


def test_without_prompt_it_is_read_from_standard_input(octavo: Octavo, core: ScriptedCore) -> None:
    octavo("run", "smollm2", "--raw", input="Two\nlines\n")
    assert core.prompts == ["Two\nlines"]


def test_without_arguments_the_default_model_answers_standard_input(
    octavo: Octavo, core: ScriptedCore
) -> None:
    assert octavo("run", input="Hi").stdout == "Paris.\n"
    assert core.configs[0].model.model == "smollm2"


def test_an_empty_prompt_is_refused(octavo: Octavo, core: ScriptedCore) -> None:
    for arguments, typed in ((["smollm2", " "], None), (["smollm2"], ""), ([], "\n")):
        result = octavo("run", *arguments, input=typed)
        assert result.exit_code == 2
        assert "the prompt is empty" in result.stderr
    assert core.configs == []


def test_a_prompt_in_the_models_place_is_told_from_a_model(octavo: Octavo, core: ScriptedCore) -> None:
    result = octavo("run", "What is this?")
    assert result.exit_code == 2
    assert 'name the model before the prompt: octavo run smollm2 "What is this?"' in result.stderr


def test_a_long_prompt_in_the_models_place_is_no_failed_look_at_the_disk(
    octavo: Octavo, core: ScriptedCore
) -> None:
    result = octavo("run", "word " * 2000)
    assert result.exit_code == 2
    assert "name the model before the prompt" in result.stderr


def test_a_model_may_lie_in_a_folder_with_a_space_in_its_name(
    octavo: Octavo, core: ScriptedCore, tmp_path: Path
) -> None:
    folder = tmp_path / "my models"
    folder.mkdir()
    assert octavo("run", str(folder), input="Hi").exit_code == 0
    assert core.configs[0].model.model == str(folder)


def test_ctrl_c_ends_the_answer_with_what_there_is(octavo: Octavo, core: ScriptedCore) -> None:
    core.before_step = lambda num_tokens: signal.raise_signal(signal.SIGINT) if num_tokens == 2 else None
    result = octavo("run", "smollm2", "Hi")
    assert result.exit_code == 130
    assert result.stdout == "Par\n"
    stopping, speeds = result.stderr.lstrip("\n").splitlines(keepends=True)
    assert stopping == "stopping after this step; Ctrl-C again to stop at once\n"
    assert SPEEDS.fullmatch(speeds)


def test_the_help_says_what_a_second_ctrl_c_does(octavo: Octavo) -> None:
    assert "a second Ctrl-C ends it at once" in " ".join(octavo("run", "--help").stdout.split())


def test_an_answer_that_fills_the_context_is_reported(octavo: Octavo, core: ScriptedCore) -> None:
    core.answers = ["x" * CONTEXT]
    result = octavo("run", "smollm2", "Hi", "-q")
    assert result.exit_code == 0
    assert f"the answer is cut off: the context of {CONTEXT} tokens is full" in result.stderr


def test_an_answer_cut_off_at_max_tokens_is_what_was_asked_for(octavo: Octavo, core: ScriptedCore) -> None:
    result = octavo("run", "smollm2", "Hi", "-q", "--max-tokens", "2")
    assert (result.stdout, result.stderr) == ("Pa\n", "")


def test_a_model_that_fails_is_an_error(octavo: Octavo, core: ScriptedCore) -> None:
    core.failure = "RuntimeError: no more"
    result = octavo("run", "smollm2", "Hi")
    assert result.exit_code == 1
    assert result.stderr == "octavo: error: the answer failed: RuntimeError: no more\n"


def test_a_prompt_longer_than_the_context_is_an_error(octavo: Octavo, core: ScriptedCore) -> None:
    result = octavo("run", "smollm2", "x" * CONTEXT)
    assert result.exit_code == 1
    assert result.stderr.startswith("octavo: error: the prompt has ")


def test_standard_input_that_is_no_utf8_is_refused(octavo: Octavo, core: ScriptedCore) -> None:
    result = octavo("run", "smollm2", input=b"hi \xff there")
    assert result.exit_code == 2
    assert "the prompt on standard input is not valid UTF-8" in result.stderr
    assert not core.requests
