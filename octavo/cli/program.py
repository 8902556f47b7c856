"""The program as a whole: its commands, its help, its errors and exit status. Knows no command's details."""

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
    """A command's line in the help, and the module that has the command under its name."""

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

smollm2 is the name of a small model. Its first use fetches it (98 MB). `octavo models` lists other models.
`octavo COMMAND --help` explains a command and lists its options.
"""


class Failure(click.ClickException):
    """An error as the user sees it: one message on stderr, and exit status 1."""

    def show(self, file: Any = None) -> None:
        """Write the message to stderr."""
        click.echo(f"octavo: error: {self.message}", file=file, err=True)


class Program(click.Group):
    """The group of all commands. It imports a command when the command is used, and reports all errors."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse `args`. The help is as wide as the terminal, also below click's minimum of 50 columns."""
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
        """The command that `args` begin with. Ends with a usage error for an unknown command."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the commands are {', '.join(COMMANDS)}"
            ctx.fail(f"there is no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, without importing them."""
        for section in dict.fromkeys(entry.section for entry in COMMANDS.values()):
            with formatter.section(section):
                formatter.write_dl(
                    [(name, entry.summary) for name, entry in COMMANDS.items() if entry.section == section]
                )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. An error becomes one clear line, after a traceback if OCTAVO_LOG=debug."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo(err=True)  # so that the shell's prompt begins a line after ^C
            ctx.exit(INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # click reports these
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
            # Its descriptor was closed. A new file gets the lowest free descriptor: in this order, that one.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, it lives as long as the program
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Characters that a terminal cannot show, and input that is not text, must not end a conversation.
            stream.reconfigure(errors="replace")
    try:
        program(prog_name="octavo")
    except OSError as error:  # the help, which is shown outside `invoke`, could not be written
        Failure(_describe(error)).show()
        sys.exit(1)
