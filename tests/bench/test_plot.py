"""docs/plots/roofline.py, which draws what `octavo bench latency` measured."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

SCRIPT = Path(__file__).parents[2] / "docs/plots/roofline.py"
POINT = {
    "model": "a/<model>.gguf",
    "backend": "native",
    "instruction_set": "avx2",
    "threads": 2,
    "num_requests": 1,
    "input_len": 240,
    "output_len": 32,
    "decode_step_s": 0.002,
    "decode_memory_s": 0.0015,
    "decode_arithmetic_s": 0.0001,
}
REFERENCE = POINT | {
    "backend": "reference",
    "instruction_set": None,
    "threads": None,
    "decode_memory_s": None,
    "decode_arithmetic_s": None,
}


@pytest.fixture
def roofline(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("roofline")


def _lines(svg: str) -> list[list[tuple[float, ...]]]:
    """The points of each line in the image, which must be well-formed."""
    found = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}polyline")
    return [
        [tuple(map(float, point.split(","))) for point in each.attrib["points"].split()] for each in found
    ]


def test_each_panel_has_what_was_measured_and_both_limits(roofline: ModuleType) -> None:
    by_batch: list[dict[str, Any]] = [
        POINT | {"num_requests": count, "decode_step_s": 0.002 * count} for count in (1, 4, 16)
    ]
    svg = roofline.draw({"context": [POINT], "batch": by_batch})
    lines = _lines(svg)
    assert [len(line) for line in lines] == [1, 1, 1, 3, 3, 3]
    measured, memory, _ = lines[3:]
    (x1, y1), (x2, y2), (x3, y3) = measured
    assert x3 - x2 == pytest.approx(x2 - x1, abs=0.2)  # equal ratios, equal distances
    assert y3 - y2 == pytest.approx(y2 - y1, abs=0.2)
    assert y1 > y2  # slower is higher up
    assert memory[0][1] > y1  # nothing is faster than the limits: they lie below
    assert "avx2, 2 threads" in svg


def test_without_a_probe_only_what_was_measured_is_drawn(roofline: ModuleType) -> None:
    svg = roofline.draw({"context": [REFERENCE], "batch": [REFERENCE]})
    assert [len(line) for line in _lines(svg)] == [1, 1]
    assert "reference backend" in svg
