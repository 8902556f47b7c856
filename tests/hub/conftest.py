"""A package index that is a folder of small wheels, and a cache of its own for every test."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from pathlib import Path

import pytest

from octavo.hub.aliases import Alias, Notices, Part, Wheel


class FakeIndex:
    """Builds wheels and hands them out as pip would; `downloads` lists the packages asked for, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.downloads: list[str] = []
        self.failing: dict[str, BaseException] = {}
        folder.mkdir()

    def add(self, package: str, members: dict[str, bytes]) -> Wheel:
        path = self.path(package)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return Wheel(package, "1.0.0", path.stat().st_size)

    def path(self, package: str) -> Path:
        return self.folder / f"{package}.whl"

    def download(self, wheel: Wheel, folder: Path) -> Path:
        self.downloads.append(wheel.package)
        assert not list(folder.iterdir())
        if wheel.package in self.failing:
            (folder / "half a wheel").touch()
            raise self.failing[wheel.package]
        return Path(shutil.copy(self.path(wheel.package), folder))

    def make_alias(self, *payloads: bytes, notices: dict[str, bytes] | None = None) -> Alias:
        """An alias whose file is `payloads` joined, each in a wheel of its own: part0, part1, ..."""
        digest = hashlib.sha256()
        parts = []
        for i, payload in enumerate(payloads):
            digest.update(payload)
            wheel = self.add(f"part{i}", {f"data/model.part{i}": payload, "part/__init__.py": b""})
            parts.append(Part(wheel, f"data/model.part{i}", len(payload), digest.hexdigest()))
        texts = (Notices(self.add("texts", notices), tuple(notices)),) if notices else ()
        return Alias(
            name="tiny",
            description="a tiny model",
            origin="https://example.org/tiny",
            licence="Apache-2.0",
            architecture="llama",
            file_name="tiny.gguf",
            parts=tuple(parts),
            notices=texts,
        )


@pytest.fixture
def index(tmp_path: Path) -> FakeIndex:
    return FakeIndex(tmp_path / "index")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache that OCTAVO_CACHE names; it does not exist yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("OCTAVO_CACHE", str(folder))
    return folder
