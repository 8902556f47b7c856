"""`octavo bench`: the commands that measure Octavo. Other modules of this package do the measuring."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.flags import SectionedCommand, engine_config, engine_options
from octavo.cli.output import write_table
from octavo.config import DEFAULT_MODEL

if TYPE_CHECKING:
    from rich.console import RenderableType

    from octavo.bench.load import Benchmark

# On if prompts share a prefix. Otherwise off, because it would only cost time.
_PREFIX_CACHING = "enable_prefix_caching"

_json_option = click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, writable=True, allow_dash=True),
    metavar="FILE",
    help="also write the figures to FILE as JSON; - = write JSON to standard output instead of the table",
)
_model_argument = click.argument("model", default=DEFAULT_MODEL)


@click.group(invoke_without_command=True)
@click.pass_context
def bench(ctx: click.Context) -> None:
    """Measure how fast Octavo is on this machine.

    Stop other programs first: they change the figures. `octavo bench COMMAND --help` explains a command and
    lists its options.

    \b
    Example:
      octavo bench latency
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _count(flag: str, default: int | None, help: str) -> Callable[[Any], Any]:
    return click.option(flag, type=click.IntRange(min=1), default=default, show_default=True, help=help)


_prefix_option = click.option(
    "--prefix-len",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="number of tokens in a prefix that all prompts share, besides --input-len; it is cached beforehand",
)


def _engine_options() -> list[click.Parameter]:
    return [option for option in engine_options() if option.name != _PREFIX_CACHING]


@bench.command(
    cls=SectionedCommand,
    params=_engine_options(),
    short_help="time to the first token, and of each token after it",
)
@_model_argument
@_count("--batch-size", 1, "number of requests that start together")
@_count("--input-len", 32, "number of tokens in each prompt")
@_prefix_option
@_count("--output-len", 128, "number of tokens to generate for each prompt")
@_count("--num-iters", None, "number of measurements; default: as many as fit into 1.5 s, and at least 3")
@_json_option
def latency(
    model: str,
    batch_size: int,
    input_len: int,
    output_len: int,
    num_iters: int | None,
    json_path: str | None,
    **flags: Any,
) -> None:
    """Measure the time to the first token, and the time of each token after it.

    MODEL is a name from `octavo models`, a path, or the id of a model on the Hugging Face hub; the default is
    smollm2. Prompts are random tokens. Every answer has exactly --output-len tokens, each the most likely
    one. Prompts share no cached tokens except those of --prefix-len. The times to load the model, for a first
    run that warms up, and to convert tokens to text do not count. With the native backend, the table also
    compares the figures with what the machine can do.

    \b
    Example:
      octavo bench latency smollm2 --input-len 512 --output-len 64
    """
    from octavo.bench.load import LATENCY

    _run_load(LATENCY, model, (batch_size, input_len, output_len), num_iters, json_path, flags)


@bench.command(
    cls=SectionedCommand, params=_engine_options(), short_help="tokens per second with many requests"
)
@_model_argument
@_count("--num-prompts", 64, "number of requests; all are queued when the clock starts")
@_count("--input-len", 128, "number of tokens in each prompt")
@_prefix_option
@_count("--output-len", 64, "number of tokens to generate for each prompt")
@_count("--num-iters", None, "number of measurements; default: as many as fit into 1.5 s, and at least 1")
@_json_option
def throughput(
    model: str,
    num_prompts: int,
    input_len: int,
    output_len: int,
    num_iters: int | None,
    json_path: str | None,
    **flags: Any,
) -> None:
    """Measure the throughput of many requests: tokens per second, of prompts and answers.

    MODEL, prompts and answers are as in `octavo bench latency`. The engine runs as many requests together as
    its settings allow (--max-num-seqs, and the size of the KV cache); the others wait.

    \b
    Example:
      octavo bench throughput smollm2 --num-prompts 16
    """
    from octavo.bench.load import THROUGHPUT

    _run_load(THROUGHPUT, model, (num_prompts, input_len, output_len), num_iters, json_path, flags)


@bench.command(short_help="each C++ kernel, compared with what the machine can do")
@click.option(
    "--format",
    "formats",
    multiple=True,
    metavar="NAME",
    help="a weight format to measure, such as Q4_K; may be given several times",
)
@_count("--threads", None, "number of threads; default: one for each processor this process may use")
@_json_option
def kernels(formats: tuple[str, ...], threads: int | None, json_path: str | None) -> None:
    """Measure each native (C++) kernel, and compare it with what the machine can do. Needs no model."""
    from octavo.bench.kernels import STANDARD_FORMATS, measure_all

    _check_writable(json_path)
    report = measure_all(
        formats or STANDARD_FORMATS, threads, lambda kernel: click.echo(f"{kernel} measured", err=True)
    )
    _write(json_path, report.to_json(), report.render())


@bench.command(short_help="time that the scheduler needs for a step")
@_json_option
def scheduler(json_path: str | None) -> None:
    """Measure the time that the scheduler needs for a step, under several loads. Needs no model."""
    from octavo.bench.scheduler import STANDARD_CASES, measure, render

    _check_writable(json_path)
    costs = []
    for number, case in enumerate(STANDARD_CASES, start=1):
        click.echo(f"case {number} of {len(STANDARD_CASES)}", err=True)
        costs.append(measure(case))
    shown = [{**dataclasses.asdict(cost), "us_per_request": cost.us_per_request} for cost in costs]
    _write(json_path, shown, render(costs))


def _run_load(
    benchmark: Benchmark,
    model: str,
    shape: tuple[int, int, int],
    num_iters: int | None,
    json_path: str | None,
    flags: dict[str, Any],
) -> None:
    """Measure requests of a `shape` (number, prompt tokens, output tokens), and write the figures."""
    from octavo.bench.generation import Load
    from octavo.bench.load import measure
    from octavo.bench.report import render

    load = Load(*shape, prefix_len=flags.pop("prefix_len"))
    config = engine_config(model, {**flags, _PREFIX_CACHING: load.prefix_len > 0})
    _check_writable(json_path)
    setup, figures = measure(benchmark, config, load, num_iters)
    data = {"benchmark": benchmark.name, **dataclasses.asdict(setup), **dataclasses.asdict(figures)}
    _write(json_path, data, render(setup, figures))


def _check_writable(json_path: str | None) -> None:
    """Raise an error before measuring if the file cannot be written."""
    if json_path not in (None, "-"):
        with click.open_file(json_path, "a"):
            pass


def _write(json_path: str | None, data: Any, table: RenderableType) -> None:
    """Write `data` as JSON to `json_path`, if given, and the table, unless the JSON is on standard output."""
    if json_path is not None:
        with click.open_file(json_path, "w", encoding="utf-8") as file:
            file.write(json.dumps(data, indent=2) + "\n")
    if json_path != "-":
        write_table(table)
