"""`octavo pull` and `octavo models`: which models there are, and bringing one here."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from octavo.hub import ALIASES, ListedModel, available_models, resolve_model
from octavo.hub.progress import format_size

_PIPED_WIDTH = 1000  # columns: a table that is piped is cut nowhere


@click.command()
@click.argument("name")
@click.option("--revision", help="branch, tag or commit of a hub id")
def pull(name: str, revision: str | None) -> None:
    """Fetch the model NAME, and print where it lies.

    NAME is a name from `octavo models`, or a hub id: org/name, or org/name:Q4_K_M for one of its GGUF files.
    What is already here is not fetched again, and a fetch that was cut short goes on where it stopped.
    """
    click.echo(resolve_model(name, revision=revision))


@click.command()
@click.option("--json", "as_json", is_flag=True, help="the list as JSON")
def models(as_json: bool) -> None:
    """List the models that have a short name, and the hub's models that are on this disk."""
    listed = available_models()
    if as_json:
        click.echo(json.dumps([_as_dict(model) for model in listed], indent=2))
    else:
        _show_table(listed)


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


def _show_table(listed: list[ListedModel]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("NAME", no_wrap=True)
    table.add_column("SIZE", justify="right", no_wrap=True)
    for heading in ("ON THIS DISK", "DESCRIPTION", "LICENCE"):
        table.add_column(heading, overflow="fold")
    for model in listed:
        where = f"no: octavo pull {model.name}" if model.path is None else str(model.path)
        cells = (model.name, format_size(model.size_bytes), where, model.description, _licence(model) or "")
        table.add_row(*map(Text, cells))  # as Text: a path may hold what rich takes for markup
    Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH).print(table)


def _licence(model: ListedModel) -> str | None:
    """None where the model's page has to be asked."""
    alias = ALIASES.get(model.name)
    return None if alias is None else alias.licence
