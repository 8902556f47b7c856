"""Against huggingface_hub itself, with its cache in a temporary folder and its two network calls replaced."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from octavo.errors import ModelNotFoundError
from octavo.hub import repository
from octavo.hub.errors import DownloadError
from octavo.hub.repository import fetch_repository

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def without_response(kind: type[Exception]) -> Exception:
    """An error of the hub's `kind`, whose constructor wants the HTTP answer that it came with."""
    error = kind.__new__(kind)
    Exception.__init__(error, "the hub says no")
    return error


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder


def fill_cache(hub_cache: Path, files: Sequence[str]) -> Path:
    """Put `files` of org/tiny into the hub's cache, and that it has one more; returns the snapshot."""
    root = hub_cache / "models--org--tiny"
    snapshot = root / "snapshots" / COMMIT
    for file in files:
        (snapshot / file).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / file).touch()
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT)
    tree = {file: {"size": 0, "blob_id": "0" * 40} for file in (*files, "never-fetched.bin")}
    (root / "trees").mkdir()
    (root / "trees" / f"{COMMIT}.json").write_text(json.dumps({"format_version": 1, "files": tree}))
    return snapshot


def answer(monkeypatch: pytest.MonkeyPatch, files: Sequence[str] | Exception) -> None:
    """Let the hub list `files` as those of any repository, or fail."""

    def model_info(self: object, repo_id: str, *, revision: str | None) -> SimpleNamespace:
        if isinstance(files, Exception):
            raise files
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in files])

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)


def test_only_the_chosen_files_are_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = []

    def download(repo_id: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        calls.append((repo_id, revision, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(repository, "snapshot_download", download)
    answer(monkeypatch, ["config.json", "model.safetensors", "model.bin", "tiny-Q4_0.gguf", "tiny-Q8_0.gguf"])
    assert fetch_repository("org/tiny", revision=None, offline=False) == tmp_path
    assert fetch_repository("org/tiny:q8_0", revision="v1", offline=False) == tmp_path / "tiny-Q8_0.gguf"
    assert calls == [
        ("org/tiny", None, ["config.json", "model.safetensors"]),
        ("org/tiny", "v1", ["tiny-Q8_0.gguf"]),
    ]


@pytest.mark.parametrize(
    ("reference", "entry"),
    [("org/tiny", ""), ("org/tiny:Q4_0", "sub/tiny-Q4_0.gguf"), ("org/tiny:Q8_0", "tiny-Q8_0.gguf")],
)
def test_offline_uses_the_cached_snapshot(hub_cache: Path, reference: str, entry: str) -> None:
    snapshot = fill_cache(
        hub_cache, ["config.json", "model.safetensors", "sub/tiny-Q4_0.gguf", "tiny-Q8_0.gguf"]
    )
    assert fetch_repository(reference, revision=None, offline=True) == snapshot / entry
    assert fetch_repository(reference, revision=COMMIT, offline=True) == snapshot / entry


@pytest.mark.parametrize("error", [OSError("unreachable"), repository.HTTPError("server error")], ids=repr)
def test_unreachable_hub_is_replaced_by_the_cache(
    hub_cache: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    answer(monkeypatch, error)
    with pytest.raises(DownloadError, match=r"no folder 'org/tiny' here.*did not answer"):
        fetch_repository("org/tiny", revision=None, offline=False)
    snapshot = fill_cache(hub_cache, ["config.json", "model.safetensors"])
    assert fetch_repository("org/tiny", revision=None, offline=False) == snapshot


def test_offline_names_what_is_not_cached(hub_cache: Path) -> None:
    fill_cache(hub_cache, ["tiny-Q8_0.gguf"])
    with pytest.raises(ModelNotFoundError, match="org/other is not in Hugging Face's cache"):
        fetch_repository("org/other", revision=None, offline=True)
    with pytest.raises(ModelNotFoundError, match="revision 'v2' of org/tiny is not"):
        fetch_repository("org/tiny", revision="v2", offline=True)
    with pytest.raises(ModelNotFoundError, match="no GGUF model 'Q4_0'"):
        fetch_repository("org/tiny:Q4_0", revision=None, offline=True)


@pytest.mark.parametrize(
    ("kind", "raised", "message"),
    [
        (GatedRepoError, DownloadError, "is gated.*https://huggingface.co/org/tiny.*HF_TOKEN"),
        (RepositoryNotFoundError, ModelNotFoundError, "no such model on the Hugging Face hub.*HF_TOKEN"),
        (RevisionNotFoundError, ModelNotFoundError, "no revision 'v1'"),
    ],
)
def test_what_the_hub_refuses_is_explained(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception], raised: type[Exception], message: str
) -> None:
    answer(monkeypatch, without_response(kind))
    with pytest.raises(raised, match=message):
        fetch_repository("org/tiny", revision="v1", offline=False)


@pytest.mark.parametrize("offline", [True, False])
def test_id_that_the_hub_does_not_allow_is_not_found(hub_cache: Path, offline: bool) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no folder '-org/a\.\.b' here"):
        fetch_repository("-org/a..b", revision=None, offline=offline)
