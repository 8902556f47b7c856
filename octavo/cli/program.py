"""The program as a whole: its commands, its help, and how it ends. Knows nothing of what a command does."""

from __future__ import annotations

import difflib
import importlib
import io
import logging
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import click

from octavo import __version__
from octavo.cli import INTERRUPTED
from octavo.errors import OctavoError
from octavo.logs import get_logger, set_up_logging

_HELP_COLUMNS = 110  # at most

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """What the help says of a command, and the module that holds it under its name."""

    section: str
    module: str
    summary: str


COMMANDS: Mapping[str, Entry] = MappingProxyType(
    {
        "run": Entry("Talk to a model", "octavo.cli.run", "answer one prompt and exit"),
        "chat": Entry("Talk to a model", "octavo.cli.chat", "hold a conversation in the terminal"),
        "pull": Entry("Models", "octavo.cli.models", "fetch a model ahead of time"),
        "models": Entry(
            "Models", "octavo.cli.models", "list the models with short names and those on this disk"
        ),
        "doctor": Entry("This machine", "octavo.cli.doctor", "check whether Octavo can run well here"),
        "bench": Entry("This machine", "octavo.bench.command", "measure how fast Octavo is on this machine"),
    }
)

EXAMPLES = """\b
Examples:
  octavo run smollm2 "Why is the sky blue?"
  octavo run smollm2 --max-tokens 50 < question.txt > answer.txt
  octavo chat smollm2 --system "You answer in one sentence."
  octavo run path/to/model.gguf --raw "Once upon a time"

The first use of smollm2 fetches it (98 MB). `octavo COMMAND --help` explains a command and lists its flags.
"""


class Failure(click.ClickException):
    """An error as the user sees it: one message on stderr, and exit status 1."""

    def show(self, file: Any = None) -> None:
        """Write the message to stderr."""
        click.echo(f"octavo: error: {self.message}", file=file, err=True)


class Program(click.Group):
    """The group of all commands, each imported when it is used, and the one place where errors end."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse `args`. The help is as wide as the terminal; click alone would not go below 50 columns."""
        width = max(min(shutil.get_terminal_size().columns, _HELP_COLUMNS) - 2, 30)
        return super().make_context(info_name, args, parent, terminal_width=width, **extra)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands' names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None for an unknown name."""
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else getattr(importlib.import_module(entry.module), cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` begin with. Ends with a usage error for an unknown one."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the commands are {', '.join(COMMANDS)}"
            ctx.fail(f"there is no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, importing none of them."""
        for section in dict.fromkeys(entry.section for entry in COMMANDS.values()):
            with formatter.section(section):
                formatter.write_dl(
                    [(name, entry.summary) for name, entry in COMMANDS.items() if entry.section == section]
                )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. What goes wrong becomes one clear line, after a traceback if OCTAVO_LOG=debug."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo(err=True)  # the shell's prompt does not go on after ^C
            ctx.exit(INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # click knows what to do
        except Exception as error:  # the program's one boundary handler
            logger.debug("%s failed", ctx.invoked_subcommand, exc_info=True)
            raise Failure(_describe(error)) from error


def _describe(error: Exception) -> str:
    if isinstance(error, (OctavoError, OSError)):
        from octavo.cli.flags import describe_error

        return describe_error(error)
    advice = "" if logger.isEnabledFor(logging.DEBUG) else "; set OCTAVO_LOG=debug to see where"
    return f"unexpected {type(error).__name__}: {error}{advice}"


@click.command(
    cls=Program,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def program(ctx: click.Context) -> None:
    """Octavo runs large language models on an ordinary CPU."""
    set_up_logging()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run_program() -> None:
    """Run the program with the arguments of this process, and end the process."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Its descriptor was closed. A file takes the lowest free one, which in this order is it.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, it lives as long as the program
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What a terminal cannot show, and what a file holds that is no text, must not end a conversation.
            stream.reconfigure(errors="replace")
    try:
        program(prog_name="octavo")
    except OSError as error:  # the help, which is shown before any command begins, could not be written
        Failure(_describe(error)).show()
        sys.exit(1)
