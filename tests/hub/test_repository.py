"""Against huggingface_hub itself, with its cache in a temporary folder and its two network calls replaced."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from octavo.errors import DownloadError, ModelNotFoundError
from octavo.hub import repository
from octavo.hub.repository import fetch_repository
from octavo.hub.selection import Select, select_model, select_tokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHARDS = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]


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
    (root / "refs").mkdir(parents=True, exist_ok=True)
    (root / "refs" / "main").write_text(COMMIT)
    tree = {file: {"size": 0, "blob_id": "0" * 40} for file in (*files, "never-fetched.bin")}
    (root / "trees").mkdir(exist_ok=True)
    (root / "trees" / f"{COMMIT}.json").write_text(json.dumps({"format_version": 1, "files": tree}))
    return snapshot


def answer(monkeypatch: pytest.MonkeyPatch, files: Sequence[str] | Exception) -> None:
    """Let the hub list `files` as those of any repository, or fail."""

    def model_info(self: object, repo_id: str, *, revision: str | None) -> SimpleNamespace:
        if isinstance(files, Exception):
            raise files
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in files])

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)


class Transfer:
    """Stands in for the download, into the hub's cache; `calls` are the files asked for, each time.

    The file named `broken` does not arrive: the transfer fails with `error`, or ends as if all were well.
    """

    def __init__(self, hub_cache: Path, broken: str = "", error: Exception | None = None) -> None:
        self.calls: list[tuple[str | None, list[str]]] = []
        self.snapshot = hub_cache / "models--org--tiny" / "snapshots" / COMMIT
        self._hub_cache = hub_cache
        self._broken = broken
        self._error = error

    def __call__(
        self, repo_id: str, *, revision: str | None, allow_patterns: list[str], local_files_only: bool = False
    ) -> str:
        if local_files_only:
            return huggingface_hub.snapshot_download(
                repo_id, revision=revision, allow_patterns=allow_patterns, local_files_only=True
            )
        self.calls.append((revision, allow_patterns))
        fill_cache(self._hub_cache, [file for file in allow_patterns if file != self._broken])
        if self._error is not None and self._broken in allow_patterns:
            raise self._error
        return str(self.snapshot)


@pytest.fixture
def transfer(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Transfer:
    """A download in which everything arrives."""
    transfer = Transfer(hub_cache)
    monkeypatch.setattr(repository, "snapshot_download", transfer)
    return transfer


def fetch(
    reference: str = "org/tiny",
    *,
    select: Select = select_model,
    revision: str | None = None,
    offline: bool = False,
) -> Path:
    return fetch_repository(reference, select=select, revision=revision, offline=offline)


def test_only_the_chosen_files_are_downloaded_and_the_weights_last(
    monkeypatch: pytest.MonkeyPatch, transfer: Transfer
) -> None:
    answer(monkeypatch, ["config.json", "model.safetensors", "model.bin", "tiny-Q4_0.gguf", "tiny-Q8_0.gguf"])
    assert fetch() == transfer.snapshot
    assert fetch("org/tiny:q8_0", revision="v1") == transfer.snapshot / "tiny-Q8_0.gguf"
    assert transfer.calls == [
        (None, ["config.json"]),
        (None, ["model.safetensors"]),
        ("v1", ["tiny-Q8_0.gguf"]),
    ]


def test_of_a_tokenizer_no_weights_are_downloaded(
    monkeypatch: pytest.MonkeyPatch, transfer: Transfer
) -> None:
    answer(monkeypatch, ["config.json", "tokenizer.json", *SHARDS])
    assert fetch(select=select_tokenizer) == transfer.snapshot
    assert transfer.calls == [(None, ["config.json", "tokenizer.json"])]


def test_a_choice_that_the_hub_does_not_have_is_not_found(
    monkeypatch: pytest.MonkeyPatch, transfer: Transfer
) -> None:
    answer(monkeypatch, ["tiny-Q8_0.gguf"])
    with pytest.raises(ModelNotFoundError, match="no GGUF model 'Q4_0'"):
        fetch("org/tiny:Q4_0")
    assert transfer.calls == []


@pytest.mark.parametrize(
    ("reference", "entry"),
    [("org/tiny", ""), ("org/tiny:Q4_0", "sub/tiny-Q4_0.gguf"), ("org/tiny:Q8_0", "tiny-Q8_0.gguf")],
)
def test_offline_uses_the_cached_snapshot(hub_cache: Path, reference: str, entry: str) -> None:
    snapshot = fill_cache(
        hub_cache, ["config.json", "model.safetensors", "sub/tiny-Q4_0.gguf", "tiny-Q8_0.gguf"]
    )
    assert fetch(reference, offline=True) == snapshot / entry
    assert fetch(reference, revision=COMMIT, offline=True) == snapshot / entry


@pytest.mark.parametrize("error", [OSError("unreachable"), repository.HTTPError("server error")], ids=repr)
def test_a_hub_that_does_not_answer_is_replaced_by_the_cache(
    hub_cache: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    answer(monkeypatch, error)
    with pytest.raises(DownloadError, match=rf"no folder 'org/tiny' here.*{error}.*check the network"):
        fetch()
    snapshot = fill_cache(hub_cache, ["config.json", "model.safetensors"])
    assert fetch() == snapshot


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("the line went dead"),
        repository.HTTPError("server error"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        RuntimeError("hf-xet broke off"),
        None,
    ],
    ids=repr,
)
def test_a_transfer_that_breaks_off_is_an_error_with_its_cause_and_never_half_a_model(
    hub_cache: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    monkeypatch.setattr(repository, "snapshot_download", Transfer(hub_cache, SHARDS[2], error))
    answer(monkeypatch, ["config.json", *SHARDS])
    with pytest.raises(DownloadError) as caught:
        fetch()
    assert (str(error) if error else f"the hub did not send {SHARDS[2]}") in str(caught.value)

    answer(monkeypatch, OSError("unreachable"))
    with pytest.raises(DownloadError, match="unreachable"):
        fetch()
    with pytest.raises(ModelNotFoundError, match=f"org/tiny is in Hugging Face's cache without {SHARDS[2]}"):
        fetch(offline=True)


def test_companions_that_do_not_arrive_leave_no_weights_that_look_like_a_model(
    hub_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Transfer(hub_cache, "tokenizer.json", ConnectionError("the line went dead"))
    monkeypatch.setattr(repository, "snapshot_download", broken)
    answer(monkeypatch, ["config.json", "model.safetensors", "tokenizer.json"])
    with pytest.raises(DownloadError, match="the line went dead"):
        fetch()
    with pytest.raises(ModelNotFoundError):
        fetch(offline=True)


def test_offline_names_what_is_not_cached(hub_cache: Path) -> None:
    fill_cache(hub_cache, ["tiny-Q8_0.gguf"])
    with pytest.raises(ModelNotFoundError, match="org/other is not in Hugging Face's cache"):
        fetch("org/other", offline=True)
    with pytest.raises(ModelNotFoundError, match="revision 'v2' of org/tiny is not"):
        fetch(revision="v2", offline=True)
    with pytest.raises(ModelNotFoundError, match="no GGUF model 'Q4_0'"):
        fetch("org/tiny:Q4_0", offline=True)


REFUSALS = [
    (GatedRepoError, DownloadError, "is gated.*https://huggingface.co/org/tiny.*HF_TOKEN"),
    (RepositoryNotFoundError, ModelNotFoundError, "no such model on the Hugging Face hub.*HF_TOKEN"),
    (RevisionNotFoundError, ModelNotFoundError, "no revision 'v1'"),
]


@pytest.mark.parametrize(("kind", "raised", "message"), REFUSALS)
@pytest.mark.parametrize("refuses_the_list", [True, False])
def test_what_the_hub_refuses_is_explained(
    hub_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Exception],
    raised: type[Exception],
    message: str,
    refuses_the_list: bool,
) -> None:
    refusal = without_response(kind)
    answer(monkeypatch, refusal if refuses_the_list else ["a.gguf"])
    monkeypatch.setattr(repository, "snapshot_download", Transfer(hub_cache, "a.gguf", refusal))
    with pytest.raises(raised, match=message):
        fetch(revision="v1")


@pytest.mark.parametrize("offline", [True, False])
def test_id_that_the_hub_does_not_allow_is_not_found(hub_cache: Path, offline: bool) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no folder '-org/a\.\.b' here"):
        fetch("-org/a..b", offline=offline)
