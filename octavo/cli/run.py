"""`octavo run` answers one prompt. Standard output holds only the answer."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from octavo.cli import INTERRUPTED
from octavo.cli.flags import (
    UNICODE_TEXT,
    SectionedCommand,
    engine_config,
    engine_options,
    sampling_options,
    sampling_params,
)
from octavo.cli.output import note, note_stopping, write_answer
from octavo.config import DEFAULT_MODEL

if TYPE_CHECKING:
    from octavo.cli.loaded_model import LoadedModel
    from octavo.frontend.input_processor import Prompt


@click.command(cls=SectionedCommand, params=[*sampling_options(), *engine_options()])
@click.argument("model", default=DEFAULT_MODEL)
@click.argument("prompt", required=False, type=UNICODE_TEXT)
@click.option(
    "--system", type=UNICODE_TEXT, help="system message: instructions to the model, placed before the prompt"
)
@click.option(
    "--raw", is_flag=True, help="let the model continue the prompt as plain text, without its chat template"
)
@click.option("--quiet", "-q", is_flag=True, help="do not print the speeds at the end")
def run(model: str, prompt: str | None, system: str | None, raw: bool, quiet: bool, **flags: Any) -> None:
    """Answer one PROMPT with MODEL, and exit.

    MODEL is a name from `octavo models`, the path of a GGUF file or of a Hugging Face folder, or the id of a
    model on the Hugging Face hub: org/name. A model that is not on this disk is fetched first. The default is
    smollm2. All options have defaults; none is needed to begin.

    If there is only one argument, it is MODEL, and PROMPT is read from standard input. Write -- before a
    PROMPT that begins with a dash: octavo run smollm2 -- "-1 + 1 ="

    The model receives PROMPT as a chat message if it has a chat template. The answer goes to standard output
    while it is generated; everything else goes to standard error. Ctrl-C ends the answer after the current
    step, which can take a while for a long PROMPT; a second Ctrl-C ends it at once.

    \b
    Examples:
      octavo run smollm2 "Why is the sky blue?"
      octavo run smollm2 --system "Answer in French." "What is 2 + 2?"
      octavo run smollm2 --max-tokens 100 < question.txt > answer.txt
    """
    if raw and system:
        raise click.UsageError("--system and --raw exclude each other; give one of them")
    if prompt is None and any(map(str.isspace, model)) and not os.path.exists(model):
        raise click.UsageError(f'name the model before the prompt: octavo run {DEFAULT_MODEL} "{model}"')
    config, params = engine_config(model, flags), sampling_params(flags)
    text = _read_prompt() if prompt is None else prompt
    if not text.strip():
        raise click.UsageError("the prompt is empty; give it after the model, or on standard input")

    from octavo.cli.loaded_model import LoadedModel

    loaded = LoadedModel(config, params)
    answer = loaded.answer(_make_prompt(loaded, text, system, raw), write_answer, note_stopping)
    if not answer.text.endswith("\n"):
        click.echo()
    if answer.finish_reason == "length" and params.max_tokens is None:
        click.echo(f"octavo: the answer is cut off: the context of {loaded.context} tokens is full", err=True)
    if not quiet:
        note(answer.describe_speed())
    if answer.interrupted:
        click.get_current_context().exit(INTERRUPTED)


def _read_prompt() -> str:
    """The prompt from standard input, without the newline at its end. Asks for it at a terminal."""
    if sys.stdin.isatty():
        click.echo("Prompt: ", err=True, nl=False)
        return sys.stdin.readline().removesuffix("\n")
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the prompt on standard input is not valid UTF-8: {error}") from error


def _make_prompt(loaded: LoadedModel, text: str, system: str | None, raw: bool) -> Prompt:
    """The text or the token ids that the model continues."""
    if raw:
        return text
    if not loaded.has_chat_template:
        if system:
            raise click.UsageError(
                f"{loaded.model} has no chat template for --system; leave it out, or give --chat-template"
            )
        click.echo(f"octavo: {loaded.model} has no chat template; it continues the prompt as it is", err=True)
        return text
    instructions = [{"role": "system", "content": system}] if system else []
    return loaded.render([*instructions, {"role": "user", "content": text}])
