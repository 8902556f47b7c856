"""`octavo doctor`: checks this machine, for users and for bug reports."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import click

from octavo.cli.diagnosis import Finding, Level, diagnose
from octavo.machine.description import Machine, read_machine

_COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="print all findings as JSON")
@click.option(
    "--program",
    "model",
    metavar="MODEL",
    help="print the instructions that the native (C++) backend runs for MODEL, instead of the checks",
)
def doctor(as_json: bool, model: str | None) -> None:
    """Check whether Octavo can run well on this machine.

    Each check is ok, a warning (Octavo runs, but slowly or not in every case) or a problem (Octavo cannot
    run). A line that begins with -> says what to do. The exit status is 1 if there is a problem.
    """
    if model is not None:
        from octavo.cli.native_program import describe_programs

        click.echo(describe_programs(model))
        return
    machine = read_machine()
    findings = diagnose(machine)
    if as_json:
        click.echo(_to_json(machine, findings))
    else:
        _show(findings)
    if any(finding.level is Level.PROBLEM for finding in findings):
        click.get_current_context().exit(1)


def _to_json(machine: Machine, findings: Sequence[Finding]) -> str:
    shown = [{**dataclasses.asdict(finding), "level": finding.level.value} for finding in findings]
    return json.dumps({"machine": dataclasses.asdict(machine), "findings": shown}, indent=2)


def _show(findings: Sequence[Finding]) -> None:
    width = max(len(finding.topic) for finding in findings)
    for finding in findings:
        level = click.style(f"{finding.level.value:<8}", fg=_COLOURS[finding.level])
        click.echo(f"{level} {finding.topic:<{width}}  {finding.text}")
        if finding.advice:
            click.echo(f"{'':<{width + 11}}-> {finding.advice}")
    counts = {
        level: sum(finding.level is level for finding in findings) for level in (Level.WARNING, Level.PROBLEM)
    }
    if not any(counts.values()):
        click.echo("\nOctavo can run here.")
        return
    found = " and ".join(
        f"{count} {level.value}{'s' * (count > 1)}" for level, count in counts.items() if count
    )
    click.echo(f"\n{found} found.")
