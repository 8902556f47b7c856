from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import huggingface_hub
import pytest

from octavo.hub import ALIASES, available_models


@pytest.fixture(autouse=True)
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that huggingface_hub takes for its cache; it does not exist yet."""
    folder = tmp_path / "hub"
    scan_cache_dir = huggingface_hub.scan_cache_dir
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: scan_cache_dir(folder))
    return folder


def fill_repository(hub_cache: Path, name: str, files: dict[str, bytes]) -> Path:
    """Put a repository with `files` into the hub's cache; returns its snapshot."""
    root = hub_cache / f"models--{name.replace('/', '--')}"
    snapshot = root / "snapshots" / ("0" * 40)
    (root / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for i, (file, content) in enumerate(files.items()):
        (root / "blobs" / str(i)).write_bytes(content)
        (snapshot / file).symlink_to(root / "blobs" / str(i))
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("0" * 40)
    return snapshot


def test_every_alias_is_listed_and_none_is_cached_at_first() -> None:
    rows = available_models()
    assert [(row.name, row.description, row.size_bytes) for row in rows] == [
        (alias.name, alias.description, alias.size_bytes) for alias in ALIASES.values()
    ]
    assert not any(row.is_cached for row in rows)


def test_fetched_alias_has_a_path_and_a_time(cache: Path) -> None:
    alias = ALIASES["gemma3-270m"]
    path = cache / "models" / alias.name / alias.file_name
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(alias.size_bytes)
    (row,) = [row for row in available_models() if row.is_cached]
    assert (row.name, row.path, row.is_cached) == (alias.name, path, True)
    assert row.fetched_at == datetime.fromtimestamp(path.stat().st_mtime, UTC)


def test_readable_models_of_the_hub_are_listed_by_name(hub_cache: Path) -> None:
    folder = fill_repository(hub_cache, "b/folder", {"config.json": b"{}", "model.safetensors": b"12345678"})
    gguf = fill_repository(hub_cache, "a/gguf", {"model-Q8_0.gguf": b"GGUF"})
    fill_repository(hub_cache, "c/pickle", {"config.json": b"{}", "pytorch_model.bin": b"?"})
    rows = available_models()[len(ALIASES) :]
    assert [(row.name, row.description, row.size_bytes, row.path) for row in rows] == [
        ("a/gguf", "GGUF from Hugging Face", 4, gguf),
        ("b/folder", "safetensors from Hugging Face", 10, folder),
    ]
