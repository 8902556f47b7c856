from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.hub import ALIASES
from octavo.hub.aliases import Alias
from octavo.hub.cache import alias_folder
from tests.scripted_program import Octavo

SMOLLM2 = ALIASES["smollm2"]


def put_in_cache(alias: Alias) -> Path:
    """A file of the right size, which is all a listing looks at (nothing of it is written to the disk)."""
    path = alias_folder(alias) / alias.file_name
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(alias.size_bytes)
    return path


def test_the_table_says_what_a_model_is_and_how_to_get_it(octavo: Octavo) -> None:
    result = octavo("models")
    assert result.exit_code == 0
    heading, *rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert heading == ["NAME", "SIZE", "ON THIS DISK", "DESCRIPTION", "LICENCE"]
    assert [row[0] for row in rows] == list(ALIASES)
    expected = ["smollm2", "98.4 MB", "no: octavo pull smollm2", SMOLLM2.description, SMOLLM2.licence]
    assert rows[0] == expected


def test_the_table_says_where_a_cached_model_lies(octavo: Octavo) -> None:
    path = put_in_cache(SMOLLM2)
    assert str(path) in octavo("models").stdout  # in one piece, for who pipes it


def test_the_list_is_there_as_json(octavo: Octavo) -> None:
    path = put_in_cache(SMOLLM2)
    listed = json.loads(octavo("models", "--json").stdout)
    cached, missing = listed[:2]
    assert cached["fetched_at"] is not None
    del cached["fetched_at"]
    assert cached == {
        "name": "smollm2",
        "description": SMOLLM2.description,
        "licence": SMOLLM2.licence,
        "size_bytes": SMOLLM2.size_bytes,
        "cached": True,
        "path": str(path),
    }
    assert (missing["cached"], missing["path"], missing["fetched_at"]) == (False, None, None)


def test_pull_hands_on_name_and_revision(octavo: Octavo, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def pull_model(name: str, *, revision: str | None) -> Path:
        asked.append((name, revision))
        return Path("/models/it")

    monkeypatch.setattr("octavo.cli.models.pull_model", pull_model)
    assert octavo("pull", "org/name", "--revision", "v2").stdout == "/models/it\n"
    assert asked == [("org/name", "v2")]


def test_pulling_an_unknown_model_lists_what_could_be_meant(octavo: Octavo) -> None:
    result = octavo("pull", "smollm3")
    assert result.exit_code == 1
    assert result.stderr.startswith("octavo: error: there is no model 'smollm3'; did you mean smollm2?\n")
