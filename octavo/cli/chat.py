"""`octavo chat`: a conversation in the terminal. Answers go to standard output, notes to standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from octavo.cli.conversation import Conversation, Exchange
from octavo.cli.flags import (
    UNICODE_TEXT,
    SectionedCommand,
    describe_error,
    engine_config,
    engine_options,
    sampling_options,
    sampling_params,
)
from octavo.cli.line_input import ReadLine, UnfinishedMessageError, line_reader, read_message
from octavo.cli.output import note, note_stopping, write_answer
from octavo.config import DEFAULT_MODEL
from octavo.errors import OctavoError, UnsupportedError

if TYPE_CHECKING:
    from octavo.cli.loaded_model import Answer, LoadedModel


@click.command(cls=SectionedCommand, params=[*sampling_options(), *engine_options()])
@click.argument("model", default=DEFAULT_MODEL)
@click.option(
    "--system",
    type=UNICODE_TEXT,
    help="system message: instructions to the model, placed before the conversation",
)
def chat(model: str, system: str | None, **flags: Any) -> None:
    """Hold a conversation with MODEL in the terminal.

    MODEL is a name from `octavo models`, the path of a GGUF file or of a Hugging Face folder, or the id of a
    model on the Hugging Face hub: org/name. A model that is not on this disk is fetched first. The default is
    smollm2. All options have defaults; none is needed to begin.

    Type a message and press Enter. In the conversation, /help lists the commands, Ctrl-C ends an answer, and
    Ctrl-D ends the conversation. If the input is not a terminal, the exit status is 1 when a message got no
    answer.

    \b
    Examples:
      octavo chat smollm2
      octavo chat smollm2 --system "You are a patient teacher." --temperature 0.7
    """
    config, params = engine_config(model, flags), sampling_params(flags)

    from octavo.cli.loaded_model import LoadedModel
    from octavo.hub.cache import cache_folder

    loaded = LoadedModel(config, params)
    if not loaded.has_chat_template:
        raise UnsupportedError(
            f"{model} has no chat template, which a conversation needs; give one with --chat-template FILE, "
            f"or let the model continue a text: octavo run --raw {model}"
        )
    note(f"{model} is ready, with a context of {loaded.context} tokens. /help lists commands, Ctrl-D ends.")
    with line_reader(cache_folder() / "chat_history") as read_line:
        conversation = Chat(loaded, Conversation(system))
        conversation.converse(read_line)
    # A user at a terminal has seen each failure. A script needs the exit status.
    if conversation.failed and not sys.stdin.isatty():
        click.get_current_context().exit(1)


class Command(NamedTuple):
    """A command of the chat. `run` receives the text after the command's name."""

    usage: str
    meaning: str
    run: Callable[[str], None]

    @property
    def takes_text(self) -> bool:
        """Whether a text may follow the command's name."""
        return " " in self.usage


class Chat:
    """A conversation with a model: sends messages, shows answers and runs commands.

    `failed` is True if any message or command has failed.
    """

    def __init__(self, loaded: LoadedModel, conversation: Conversation) -> None:
        self.model = loaded
        self.conversation = conversation
        self.ended = False
        self.failed = False
        self._last_answer: Answer | None = None
        commands = (
            Command("/help", "show this list", self.show_help),
            Command("/clear", "begin a new conversation, with the same system message", self.clear),
            Command("/system TEXT", "set the system message; without TEXT, show it", self.set_system),
            Command("/undo", "forget the last message and its answer", self.undo),
            Command("/retry", "ask the last message again", self.retry),
            Command("/history", "show the conversation so far", self.show_history),
            Command("/save FILE", "write the conversation to a JSON file, as chat messages", self.save),
            Command(
                "/stats", "show how fast the last answer was, and how full the context is", self.show_stats
            ),
            Command("/quit", "end the conversation", self.quit),
        )
        self._commands = {command.usage.split()[0]: command for command in commands}

    def converse(self, read_line: ReadLine) -> None:
        """Take messages and commands until the user ends the conversation."""
        while not self.ended:
            try:
                message = read_message(read_line)
            except EOFError as end:
                note("")
                if isinstance(end, UnfinishedMessageError):
                    self._fail("the input ended within a message, which was not sent")
                return
            except KeyboardInterrupt:
                note("\n(Ctrl-D or /quit ends the conversation)")
                continue
            if message.startswith("/"):
                self.obey(message)
            elif message.strip():
                self.ask(message)

    def ask(self, question: str) -> bool:
        """Send `question` to the model and show the answer. If there is one, keep both and return True."""
        try:
            answer = self._answer(question)
        except OctavoError as error:
            self._fail(describe_error(error))
            return False
        if answer is None:
            return False
        self._last_answer = answer
        if answer.interrupted:
            note("(stopped; /retry asks again)")
        elif answer.finish_reason == "length":
            limit = self.model.params.max_tokens
            note("(the context is full; see /clear)" if limit is None else f"(cut off at {limit} tokens)")
        if answer.text:
            self.conversation.exchanges.append(Exchange(question, answer.text))
        return bool(answer.text)

    def obey(self, line: str) -> None:
        """Run a command such as `/system Be brief.`"""
        name, _, argument = line.partition(" ")
        command = self._commands.get(name)
        if command is None:
            note(f"There is no command {name}; see /help. To send this as a message, begin with a space.")
        elif argument.strip() and not command.takes_text:
            note(f"{name} takes no text after it; nothing was done.")
        else:
            command.run(argument.strip())

    def show_help(self, argument: str) -> None:
        """List the commands."""
        for command in self._commands.values():
            note(f"  {command.usage:<14}{command.meaning}")
        note(
            "\nA message of several lines: end each line but the last with \\, or begin the message with "
            '""" and end it with """.'
        )
        note(
            "Ctrl-C ends an answer after the current step; a second Ctrl-C ends the program at once. "
            "Ctrl-D ends the conversation."
        )

    def clear(self, argument: str) -> None:
        """Begin a new conversation."""
        self.conversation = Conversation(self.conversation.system)
        note("A new conversation.")

    def set_system(self, argument: str) -> None:
        """Set the system message for the next answers, and show it."""
        if argument:
            self.conversation.system = argument
        note(f"System message: {self.conversation.system or 'none'}")

    def undo(self, argument: str) -> None:
        """Forget the last exchange."""
        if not self.conversation.exchanges:
            note("There is nothing to undo.")
            return
        note(f"Forgotten: {self.conversation.exchanges.pop().question}")

    def retry(self, argument: str) -> None:
        """Ask the last message again. Its old answer is kept if there is no new one."""
        if not self.conversation.exchanges:
            note("There is no message to ask again.")
            return
        last = self.conversation.exchanges.pop()
        if not self.ask(last.question):
            self.conversation.exchanges.append(last)

    def show_history(self, argument: str) -> None:
        """Show the conversation."""
        for message in self.conversation.messages():
            note(f"{message['role']}: {message['content']}")

    def save(self, argument: str) -> None:
        """Write the conversation to a file."""
        if not argument:
            note("Name the file: /save FILE")
            return
        path = os.path.expanduser(argument)
        text = json.dumps(self.conversation.messages(), ensure_ascii=False, indent=2)
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(text + "\n")
        except FileExistsError:
            self._fail(f"{path} exists already, and was left as it is; name another file")
        except OSError as error:
            self._fail(describe_error(error))
        else:
            note(f"Saved to {path}.")

    def show_stats(self, argument: str) -> None:
        """Show the speeds of the last answer."""
        last = self._last_answer
        if last is None:
            note("There is no answer yet.")
            return
        used = last.num_prompt_tokens + last.num_tokens
        note(f"{last.describe_speed()}\ncontext: {used} of {self.model.context} tokens used")

    def quit(self, argument: str) -> None:
        """End the conversation."""
        self.ended = True

    def _answer(self, question: str) -> Answer | None:
        """The model's answer, shown as it comes, or None if the conversation no longer fits the context."""
        prompt = self.model.render(self.conversation.messages_with(question))
        num_new_tokens = self.model.params.max_tokens or 1
        if len(prompt) + num_new_tokens > self.model.context:
            self.failed = True
            note(
                f"The conversation no longer fits: with this message it has {len(prompt)} tokens, its answer "
                f"needs {num_new_tokens} more, and the context holds {self.model.context}. Nothing was "
                f"dropped. /clear begins a new conversation. /undo or a shorter message may be enough."
            )
            return None
        try:
            return self.model.answer(prompt, write_answer, note_stopping)
        finally:
            click.echo()

    def _fail(self, reason: str) -> None:
        self.failed = True
        note(f"octavo: error: {reason}")
