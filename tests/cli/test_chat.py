from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from click.testing import Result

from octavo.cli.conversation import Conversation, Exchange
from tests.scripted_program import CONTEXT, Octavo, ScriptedCore


@pytest.fixture
def chat(octavo: Octavo, core: ScriptedCore) -> Octavo:
    """Runs a chat over lines; the flags are after them: `chat(["Hi"], "--system", "Be brief.")`."""
    core.answers = ["One", "Two", "Three"]
    return lambda lines, *flags: octavo("chat", "smollm2", *flags, input="\n".join(lines) + "\n")


def turns(*messages: tuple[str, str]) -> str:
    said = "".join(f"<|turn|>{role}: {content}<|end|>" for role, content in messages)
    return said + "<|turn|>assistant: "


def notes(result: Result, exit_code: int = 0) -> list[str]:
    """What was written besides answers, without the greeting."""
    assert result.exit_code == exit_code, result.output
    return result.stderr.splitlines()[1:]


def test_the_whole_conversation_is_sent_every_time(chat: Octavo, core: ScriptedCore) -> None:
    result = chat(["Hi", "And then?"], "--system", "Be brief.")
    assert result.exit_code == 0
    assert result.stdout == "One\nTwo\n"
    system = ("system", "Be brief.")
    assert core.prompts == [
        turns(system, ("user", "Hi")),
        turns(system, ("user", "Hi"), ("assistant", "One"), ("user", "And then?")),
    ]


def test_the_greeting_names_the_model_and_its_context(chat: Octavo) -> None:
    greeting = chat([]).stderr.splitlines()[0]
    expected = f"smollm2 is ready, with a context of {CONTEXT} tokens. /help lists commands, Ctrl-D ends."
    assert greeting == expected


def test_empty_lines_are_no_messages(chat: Octavo, core: ScriptedCore) -> None:
    chat(["", "  ", "Hi"])
    assert core.prompts == [turns(("user", "Hi"))]


def test_a_message_may_span_lines(chat: Octavo, core: ScriptedCore) -> None:
    chat(["one\\", "two", '"""', "three", 'four"""'])
    assert core.prompts[0] == turns(("user", "one\ntwo"))
    assert core.prompts[1].endswith(turns(("user", "three\nfour")))


def test_quit_ends_the_conversation(chat: Octavo, core: ScriptedCore) -> None:
    assert chat(["/quit", "Hi"]).exit_code == 0
    assert core.prompts == []


@pytest.mark.parametrize("command", ["/clear", "/retry", "/undo", "/history", "/stats", "/help", "/quit"])
def test_words_after_a_command_that_takes_none_are_refused(
    chat: Octavo, core: ScriptedCore, command: str
) -> None:
    shown = notes(chat(["Hi", f"{command} please", "Next"]))
    assert shown[0] == f"{command} takes no text after it; nothing was done."
    assert core.prompts[1:] == [turns(("user", "Hi"), ("assistant", "One"), ("user", "Next"))]


@pytest.mark.parametrize("lines", [['"""never', "closed"], ["goes on\\"]])
def test_a_message_that_the_end_of_input_cuts_off_is_said_not_to_be_sent(
    octavo: Octavo, core: ScriptedCore, lines: list[str]
) -> None:
    result = octavo("chat", "smollm2", input="\n".join(lines))
    expected = ["", "octavo: error: the input ended within a message, which was not sent"]
    assert notes(result, exit_code=1) == expected
    assert core.prompts == []


def test_an_empty_system_message_is_none(chat: Octavo, core: ScriptedCore) -> None:
    chat(["Hi"], "--system", "")
    assert core.prompts == [turns(("user", "Hi"))]


def test_errors_in_the_conversation_speak_of_flags(chat: Octavo, core: ScriptedCore) -> None:
    result = chat(["Hi"], "--stop-token-ids", "999")
    assert notes(result, exit_code=1)[0].startswith("octavo: error: --stop-token-ids names token 999")


def test_help_says_what_a_second_ctrl_c_does(chat: Octavo) -> None:
    assert any("a second Ctrl-C ends the program at once" in line for line in notes(chat(["/help"])))


def test_help_lists_the_commands(chat: Octavo) -> None:
    listed = {line.split()[0] for line in notes(chat(["/help"])) if line.startswith("  /")}
    assert listed == {
        "/help", "/clear", "/system", "/undo", "/retry", "/history", "/save", "/stats", "/quit"
    }  # fmt: skip


def test_an_unknown_command_is_not_sent_and_says_what_to_do(chat: Octavo, core: ScriptedCore) -> None:
    (note, *_) = notes(chat(["/etc/hosts is what?"]))
    expected = "There is no command /etc/hosts; see /help. To send this as a message, begin with a space."
    assert note == expected
    assert core.prompts == []


def test_a_message_may_begin_with_a_slash_after_a_space(chat: Octavo, core: ScriptedCore) -> None:
    chat([" /etc/hosts is what?"])
    assert core.prompts == [turns(("user", " /etc/hosts is what?"))]


def test_clear_forgets_everything_but_the_system_message(chat: Octavo, core: ScriptedCore) -> None:
    chat(["Hi", "/clear", "Hello"], "--system", "Be brief.")
    assert core.prompts[1] == turns(("system", "Be brief."), ("user", "Hello"))


def test_system_sets_and_shows_the_system_message(chat: Octavo, core: ScriptedCore) -> None:
    result = chat(["/system", "/system Speak French.", "Hi", "/system"])
    shown = [note for note in notes(result) if note.startswith("System")]
    assert shown == [
        "System message: none",
        "System message: Speak French.",
        "System message: Speak French.",
    ]
    assert core.prompts == [turns(("system", "Speak French."), ("user", "Hi"))]


def test_undo_forgets_the_last_exchange(chat: Octavo, core: ScriptedCore) -> None:
    result = chat(["Hi", "Oops", "/undo", "Again"])
    assert "Forgotten: Oops" in notes(result)
    assert core.prompts[2] == turns(("user", "Hi"), ("assistant", "One"), ("user", "Again"))


def test_retry_asks_the_last_message_again(chat: Octavo, core: ScriptedCore) -> None:
    chat(["Hi", "/retry", "Next"])
    assert core.prompts[1] == turns(("user", "Hi"))
    assert core.prompts[2] == turns(("user", "Hi"), ("assistant", "Two"), ("user", "Next"))


def test_a_retry_without_an_answer_keeps_the_old_one(chat: Octavo, core: ScriptedCore) -> None:
    core.answers[1] = ""
    chat(["Hi", "/retry", "Next"])
    assert core.prompts[2] == turns(("user", "Hi"), ("assistant", "One"), ("user", "Next"))


@pytest.mark.parametrize(
    ("command", "note"),
    [
        ("/undo", "There is nothing to undo."),
        ("/retry", "There is no message to ask again."),
        ("/stats", "There is no answer yet."),
        ("/save", "Name the file: /save FILE"),
    ],
)
def test_commands_that_have_nothing_to_work_on_say_so(chat: Octavo, command: str, note: str) -> None:
    assert notes(chat([command]))[0] == note


def test_history_shows_the_conversation(chat: Octavo) -> None:
    shown = notes(chat(["Hi", "/history"], "--system", "Be brief."))
    assert shown[:3] == ["system: Be brief.", "user: Hi", "assistant: One"]


def test_save_writes_the_messages_as_json(chat: Octavo, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    assert f"Saved to {path}." in notes(chat(["Où?", f"/save {path}"]))
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert saved == [{"role": "user", "content": "Où?"}, {"role": "assistant", "content": "One"}]


def test_a_file_that_cannot_be_written_does_not_end_the_conversation(
    chat: Octavo, core: ScriptedCore, tmp_path: Path
) -> None:
    path = tmp_path / "no folder" / "chat.json"
    result = chat([f"/save {path}", "Hi"])
    assert notes(result, exit_code=1)[0] == f"octavo: error: {path}: No such file or directory"
    assert result.stdout == "One\n"


def test_save_overwrites_nothing(chat: Octavo, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text("precious")
    (note, *_) = notes(chat([f"/save {path}"]), exit_code=1)
    assert note == f"octavo: error: {path} exists already, and was left as it is; name another file"
    assert path.read_text() == "precious"


def test_stats_show_speeds_and_how_full_the_context_is(chat: Octavo, core: ScriptedCore) -> None:
    speeds, context, *_ = notes(chat(["Hi", "/stats"]))
    num_prompt_tokens = len(core.requests[0].prompt_token_ids)
    assert speeds.startswith(f"prompt: {num_prompt_tokens} tokens")
    assert context == f"context: {num_prompt_tokens + 4} of {CONTEXT} tokens used"


def test_ctrl_c_ends_an_answer_and_the_conversation_goes_on(chat: Octavo, core: ScriptedCore) -> None:
    def press(num_tokens: int) -> None:
        if len(core.requests) == 1 and num_tokens == 1:
            signal.raise_signal(signal.SIGINT)

    core.before_step = press
    result = chat(["Hi", "Go on"])
    assert result.stdout == "On\nTwo\n"
    assert notes(result)[:3] == [
        "",  # from the terminal's ^C on to a line of its own
        "stopping after this step; Ctrl-C again to stop at once",
        "(stopped; /retry asks again)",
    ]
    assert core.prompts[1] == turns(("user", "Hi"), ("assistant", "On"), ("user", "Go on"))


def test_ctrl_c_at_the_prompt_says_how_to_leave(
    chat: Octavo, core: ScriptedCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter([KeyboardInterrupt(), "Hi", EOFError()])

    def read_message(read_line: object) -> str:
        line = next(lines)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("octavo.cli.chat.read_message", read_message)
    result = chat([])
    assert "(Ctrl-D or /quit ends the conversation)" in notes(result)
    assert result.stdout == "One\n"


def test_a_conversation_that_no_longer_fits_is_refused_and_stays_as_it_was(
    chat: Octavo, core: ScriptedCore
) -> None:
    result = chat(["Hi", "x" * CONTEXT, "/history", "Short", "/clear", "Hi"])
    (refusal,) = [
        note for note in notes(result, exit_code=1) if note.startswith("The conversation no longer fits")
    ]
    assert f"the context holds {CONTEXT}" in refusal
    assert "/clear begins a new conversation" in refusal
    assert core.prompts[1] == turns(("user", "Hi"), ("assistant", "One"), ("user", "Short"))
    assert core.prompts[2] == turns(("user", "Hi"))


def test_each_turn_reserves_all_of_max_tokens(chat: Octavo, core: ScriptedCore) -> None:
    result = chat(["Hi"], "--max-tokens", str(CONTEXT))
    assert f"its answer needs {CONTEXT} more" in notes(result, exit_code=1)[0]
    assert core.prompts == []


def test_an_answer_that_is_cut_off_is_reported(chat: Octavo, core: ScriptedCore) -> None:
    assert "(cut off at 2 tokens)" in notes(chat(["Hi"], "--max-tokens", "2"))
    core.requests.clear()
    core.answers = ["x" * CONTEXT]
    assert "(the context is full; see /clear)" in notes(chat(["Hi"]))


def test_a_failed_answer_leaves_no_trace_and_the_conversation_goes_on(
    chat: Octavo, core: ScriptedCore
) -> None:
    def fail_first(num_tokens: int) -> None:
        core.failure = "out of luck" if len(core.requests) == 1 else None

    core.before_step = fail_first
    result = chat(["Hi", "Again"])
    assert notes(result, exit_code=1)[0] == "octavo: error: the answer failed: out of luck"
    assert core.prompts[1] == turns(("user", "Again"))


def test_a_conversation_that_the_template_refuses_is_an_error_of_that_message(
    chat: Octavo, core: ScriptedCore
) -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}ok"
    result = chat(["/system Be brief.", "Hi"], "--chat-template", template)
    assert any(
        note.startswith("octavo: error: ") and "no system" in note for note in notes(result, exit_code=1)
    )
    assert core.prompts == []


def test_a_model_without_chat_template_cannot_chat(octavo: Octavo, core: ScriptedCore) -> None:
    core.tokenizer.chat_template = None
    result = octavo("chat", "base")
    assert result.exit_code == 1
    assert result.stderr.startswith("octavo: error: base has no chat template")
    assert "octavo run --raw base" in result.stderr


def test_a_conversation_is_messages_in_pairs() -> None:
    conversation = Conversation()
    conversation.exchanges.append(Exchange("Hi", "Hello"))
    assert conversation.messages_with("Bye") == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
    ]
    assert conversation.messages() == conversation.messages_with("Bye")[:2]
