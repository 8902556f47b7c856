"""Measures decode against context and batch size, and draws it beside what the machine can do at most.

    python docs/plots/roofline.py                      # measure smollm2, write roofline.json and roofline.svg
    python docs/plots/roofline.py --draw-only          # draw roofline.json again
    python docs/plots/roofline.py --contexts 48 --batches 1 2 --output-len 4 --backend reference   # to try it

Every point is a process of its own: `octavo bench latency --json -`. A point that the model or the memory has
no room for is left out, with a word about it. Needs nothing but Octavo.
"""

from __future__ import annotations

import argparse
import html
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
CONTEXTS = (256, 1024, 4096, 8000, 32000)  # of one request
BATCHES = (1, 4, 16, 64, 256)
BATCH_CONTEXT = 256

WIDTH, HEIGHT = 430, 330  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 60, 15, 45, 50  # around its plot


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a panel: milliseconds of a decode step by context or batch size."""

    label: str
    colour: str
    dashes: str
    points: tuple[tuple[float, float], ...]


class Scale:
    """From numbers to places on a logarithmic axis that goes from `start` to `end`."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self._low, self._high = min(values), max(values)
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        """The place of `value`: the middle where there is but one number."""
        if self._low == self._high:
            return (self._start + self._end) / 2
        share = math.log(value / self._low) / math.log(self._high / self._low)
        return self._start + share * (self._end - self._start)


def measure_all(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `octavo bench latency` says of every point, by panel."""
    batch_context = min(BATCH_CONTEXT, *arguments.contexts)
    shapes = {
        "context": [(1, context) for context in arguments.contexts],
        "batch": [(batch, batch_context) for batch in arguments.batches],
    }
    return {
        panel: [point for shape in members if (point := measure(arguments, *shape)) is not None]
        for panel, members in shapes.items()
    }


def measure(arguments: argparse.Namespace, batch: int, context: int) -> dict[str, Any] | None:
    """One point, half-way through which each request has `context` tokens; None where it cannot run."""
    sys.stderr.write(f"batch {batch}, context {context}\n")
    shape = {
        "--batch-size": batch,
        "--input-len": context - arguments.output_len // 2,
        "--output-len": arguments.output_len,
        "--num-iters": arguments.num_iters,
        "--backend": arguments.backend,
        "--threads": arguments.threads,
    }
    flags = [text for flag, value in shape.items() if value is not None for text in (flag, str(value))]
    command = [sys.executable, "-c", "from octavo.cli import main; main()", "bench", "latency"]
    done = subprocess.run(
        [*command, arguments.model, *flags, "--json", "-"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.stderr.write(done.stderr)
        return None
    return json.loads(done.stdout)


def draw(results: dict[str, Any]) -> str:
    """The panels side by side, as an SVG image."""
    by_context, by_batch = results["context"], results["batch"]
    panels = [
        draw_panel("One request", "tokens of context", series(by_context, half_way)),
        draw_panel("Requests together", "requests", series(by_batch, lambda point: point["num_requests"])),
    ]
    width, height = WIDTH * len(panels), HEIGHT + 25
    shifted = [
        f'<g transform="translate({number * WIDTH}, 0)">{panel}</g>' for number, panel in enumerate(panels)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="11"><rect width="{width}" height="{height}" fill="white"/>{"".join(shifted)}'
        f"{text(width / 2, height - 10, describe(by_context[0], by_batch[0]))}</svg>\n"
    )


def half_way(point: dict[str, Any]) -> int:
    """The context in the middle of what was measured."""
    return point["input_len"] + point["output_len"] // 2


def describe(by_context: dict[str, Any], by_batch: dict[str, Any]) -> str:
    """What the panels were measured on."""
    parts = [Path(by_context["model"]).name, f"{by_context['backend']} backend"]
    if by_context["instruction_set"] is not None:
        parts.append(f"{by_context['instruction_set']}, {by_context['threads']} threads")
    parts.append(f"requests together have {half_way(by_batch)} tokens each")
    return "; ".join(parts)


def series(points: Sequence[dict[str, Any]], x_of: Callable[[dict[str, Any]], int]) -> list[Series]:
    """The lines of a panel; those of the machine's limits only where it was probed."""
    lines = (
        ("measured", "#c0392b", "", "decode_step_s"),
        ("bytes / bandwidth", "#2c3e50", "6 4", "decode_memory_s"),
        ("operations / peak", "#2980b9", "2 3", "decode_arithmetic_s"),
    )
    return [
        Series(label, colour, dashes, tuple((x_of(point), point[key] * 1000) for point in points))
        for label, colour, dashes, key in lines
        if all(point[key] is not None for point in points)
    ]


def draw_panel(title: str, x_label: str, lines: Sequence[Series]) -> str:
    """One plot: both axes logarithmic, a tick for each point of x and each power of ten of y."""
    xs = sorted({x for line in lines for x, _ in line.points})
    ys = [y for line in lines for _, y in line.points]
    decades = [
        10.0**power for power in range(math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys))) + 1)
    ]
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    x_scale, y_scale = Scale(xs, LEFT, right), Scale(decades, bottom, TOP)
    parts = [text((LEFT + right) / 2, 18, title, size=13), text((LEFT + right) / 2, HEIGHT - 12, x_label)]
    parts.append(text(LEFT, TOP - 8, "ms a decode step", anchor="start"))
    for y in decades:
        parts.append(rule(LEFT, y_scale(y), right, y_scale(y)))
        parts.append(text(LEFT - 6, y_scale(y) + 4, f"{y:g}", anchor="end"))
    for x in xs:
        parts.append(rule(x_scale(x), TOP, x_scale(x), bottom))
        parts.append(text(x_scale(x), bottom + 16, f"{x:,}"))
    for number, line in enumerate(lines):
        places = [(x_scale(x), y_scale(y)) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        style = f'stroke="{line.colour}" stroke-dasharray="{line.dashes}"'
        parts.append(f'<polyline points="{path}" fill="none" stroke-width="2" {style}/>')
        key_y = TOP + 14 + 15 * number
        parts.append(f'<path d="M{LEFT + 8} {key_y - 4}h24" stroke-width="2" {style}/>')
        parts.append(text(LEFT + 38, key_y, line.label, anchor="start"))
        if not line.dashes:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{line.colour}"/>' for x, y in places]
    return "".join(parts)


def text(x: float, y: float, content: str, anchor: str = "middle", size: int = 11) -> str:
    """A text whose baseline is at y."""
    shown = html.escape(content)
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{shown}</text>'


def rule(x1: float, y1: float, x2: float, y2: float) -> str:
    """A line of the grid."""
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="#dddddd"/>'


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--output-len", type=int, default=32)
    parser.add_argument("--num-iters", type=int, default=1)
    parser.add_argument("--backend")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--draw-only", action="store_true", help="measure nothing")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the results go")
    return parser.parse_args()


def main() -> None:
    """Measure unless told not to, and draw."""
    arguments = parse_arguments()
    data = arguments.folder / "roofline.json"
    if not arguments.draw_only:
        data.write_text(json.dumps(measure_all(arguments), indent=1) + "\n")
    results = json.loads(data.read_text())
    if not all(results.values()):
        sys.exit("a panel has no point that could be measured; see above")
    (arguments.folder / "roofline.svg").write_text(draw(results))


if __name__ == "__main__":
    main()
