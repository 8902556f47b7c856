"""`octavo bench`: how fast parts of Octavo are here. What is measured, and how, is in modules of its own."""

from __future__ import annotations

import dataclasses
import json

import click


@click.group(invoke_without_command=True)
@click.pass_context
def bench(ctx: click.Context) -> None:
    """Measure how fast Octavo is on this machine. Other programs should be quiet meanwhile."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@bench.command()
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, writable=True, allow_dash=True),
    metavar="FILE",
    help="write the costs to FILE as JSON; - = standard output, in place of the table",
)
def scheduler(json_path: str | None) -> None:
    """Measure what scheduling costs a step, under several loads. No model is needed."""
    from rich.console import Console

    from octavo.cli.bench_scheduler import STANDARD_CASES, measure, render

    if json_path not in (None, "-"):
        with click.open_file(json_path, "a"):  # to fail before measuring, not after
            pass
    costs = []
    for number, case in enumerate(STANDARD_CASES, start=1):
        click.echo(f"case {number} of {len(STANDARD_CASES)}", err=True)
        costs.append(measure(case))
    if json_path is not None:
        shown = [{**dataclasses.asdict(cost), "us_per_request": cost.us_per_request} for cost in costs]
        with click.open_file(json_path, "w", encoding="utf-8") as file:
            file.write(json.dumps(shown, indent=2) + "\n")
    if json_path != "-":
        Console().print(render(costs))
