"""`octavo pull` fetches a model, and `octavo models` lists the models that there are."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from octavo.hub import ALIASES, ListedModel, available_models, pull_model
from octavo.hub.progress import format_size

_HEADINGS = ("NAME", "SIZE", "ON THIS DISK", "DESCRIPTION", "LICENCE")


@click.command()
@click.argument("name")
@click.option("--revision", help="branch, tag or commit of a model on the hub; default: main")
def pull(name: str, revision: str | None) -> None:
    """Fetch the model NAME, and print its path.

    `octavo run` and `octavo chat` fetch a model when they need it. Use this command to fetch it ahead of
    time, for example before going offline.

    NAME is a name from `octavo models`, or the id of a model on the Hugging Face hub: org/name, or
    org/name:Q4_K_M for one of its GGUF files. An interrupted fetch continues where it stopped. If a model
    from `octavo models` is already on this disk, it is verified, and fetched again only if it is damaged.

    \b
    Examples:
      octavo pull smollm2
      octavo pull org/name:Q4_K_M
    """
    click.echo(pull_model(name, revision=revision))


@click.command()
@click.option("--json", "as_json", is_flag=True, help="print the list as JSON")
def models(as_json: bool) -> None:
    """List the models that have a short name, and the models of the Hugging Face hub on this disk.

    The other commands take a name from the list as MODEL, for example: octavo run smollm2. If the output is
    not a terminal, each model is one line, with tabs between the columns.
    """
    listed = available_models()
    if as_json:
        click.echo(json.dumps([_as_dict(model) for model in listed], indent=2))
    else:
        rows = [_as_row(model) for model in listed]
        if sys.stdout.isatty():
            _show_table(rows)
        else:
            for row in (_HEADINGS, *rows):
                click.echo("\t".join(row))


def _as_dict(model: ListedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "description": model.description,
        "licence": _licence(model),
        "size_bytes": model.size_bytes,
        "cached": model.is_cached,
        "path": None if model.path is None else str(model.path),
        "fetched_at": None if model.fetched_at is None else model.fetched_at.isoformat(),
    }


def _as_row(model: ListedModel) -> tuple[str, ...]:
    where = f"no: octavo pull {model.name}" if model.path is None else str(model.path)
    return model.name, format_size(model.size_bytes), where, model.description, _licence(model) or ""


def _show_table(rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    name, size, *others = _HEADINGS
    table.add_column(name, no_wrap=True)
    table.add_column(size, justify="right", no_wrap=True)
    for heading in others:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # as Text: rich would read brackets in a path as markup
    Console().print(table)


def _licence(model: ListedModel) -> str | None:
    """The licence of a model with a short name. For others only the model's page has it: None."""
    alias = ALIASES.get(model.name)
    return None if alias is None else alias.licence
