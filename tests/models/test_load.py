"""A folder whose config.json is no JSON object gets one error that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.errors import WeightError
from octavo.models.load import open_model
from tests.tiny_model import write_tiny_model


@pytest.mark.parametrize("content", ["", "{", "[]", "5", "[" * 100_000, "\udcff"])
def test_a_config_that_is_no_object_is_an_error_of_the_file(tmp_path: Path, content: str) -> None:
    folder = write_tiny_model(tmp_path)
    (folder / "config.json").write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(WeightError, match=r"config\.json (is not JSON|holds .*; it must be a JSON object)"):
        open_model(folder)


def test_a_missing_config_is_an_error_of_the_file(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    (folder / "config.json").unlink()
    with pytest.raises(WeightError, match=r"config\.json cannot be read: No such file"):
        open_model(folder)
