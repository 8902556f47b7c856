"""Brings files here from the Hugging Face hub, into that library's own cache and with its progress bars.

Which files of a repository are wanted is decided in `selection.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (  # type: ignore[attr-defined]
    GatedRepoError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from octavo.errors import DownloadError, ModelNotFoundError
from octavo.hub.selection import Select, Selection, complete_shards


def fetch_repository(reference: str, *, select: Select, revision: str | None, offline: bool) -> Path:
    """Bring what `select` picks of `org/name` or `org/name:CHOICE` here; its folder, or the GGUF file in it.

    With `offline`, and where the hub does not say what it has (HF_HUB_OFFLINE=1 silences it, too), a cached
    snapshot is used if it is whole. Raises ModelNotFoundError when there is no such repository, revision or
    file, or with `offline` none in the cache; DownloadError, with the cause, when the hub refuses or cannot
    be reached, or the files cannot be stored.
    """
    repo_id, _, choice = reference.partition(":")
    if offline:
        return _find_cached(repo_id, choice, select, revision)
    try:
        files = _list_files(repo_id, revision)
    except DownloadError:
        with contextlib.suppress(ModelNotFoundError):
            return _find_cached(repo_id, choice, select, revision)
        raise
    selection = select(repo_id, files, choice)
    return _download(repo_id, selection, revision) / selection.entry


def _list_files(repo_id: str, revision: str | None) -> list[str]:
    """The files the hub has, by their paths in the repository. Raises as `_failures_explained` does."""
    with _failures_explained(repo_id, revision):
        return [file.rfilename for file in HfApi().model_info(repo_id, revision=revision).siblings or []]


def _download(repo_id: str, selection: Selection, revision: str | None) -> Path:
    """Fetch the selected files; returns the snapshot's folder. Raises as `_failures_explained` does."""
    with _failures_explained(repo_id, revision):
        for files in filter(None, (selection.companions, selection.weights)):
            folder = Path(snapshot_download(repo_id, revision=revision, allow_patterns=list(files)))
        # The library, too, makes do with what it has when the hub falls silent.
        if missing := _missing(selection, folder):
            raise ConnectionError(f"the hub did not send {', '.join(missing)}")
    return folder


def _find_cached(repo_id: str, choice: str, select: Select, revision: str | None) -> Path:
    """The folder or GGUF file in the cache. Raises ModelNotFoundError when it is not there in full."""
    wanted = f"revision {revision!r} of {repo_id}" if revision else repo_id
    try:
        # With no pattern to satisfy the snapshot comes back as it lies, even where only a part was fetched.
        snapshot = snapshot_download(repo_id, revision=revision, local_files_only=True, allow_patterns=[])
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise ModelNotFoundError(
            f"there is no folder {repo_id!r} here, and {wanted} is not in Hugging Face's cache; "
            "fetch it while online, or give the path of a model on this disk"
        ) from error
    folder = Path(snapshot)
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    selection = select(repo_id, complete_shards(files), choice)
    if missing := _missing(selection, folder):
        raise ModelNotFoundError(
            f"{wanted} is in Hugging Face's cache without {', '.join(missing)}; fetch it again while online"
        )
    return folder / selection.entry


def _missing(selection: Selection, folder: Path) -> list[str]:
    return [file for file in selection.files if not (folder / file).is_file()]


@contextlib.contextmanager
def _failures_explained(repo_id: str, revision: str | None) -> Iterator[None]:
    """Turn the hub's refusals, and whatever else stops a transfer, into errors that say what to do.

    Raises ModelNotFoundError for a repository or revision that does not exist, else DownloadError.
    """
    try:
        yield
    except GatedRepoError as error:
        raise DownloadError(
            f"{repo_id} is gated; accept its terms at https://huggingface.co/{repo_id}, "
            "then log in with `hf auth login` or set HF_TOKEN"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFoundError(f"{repo_id} has no revision {revision!r} on the Hugging Face hub") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelNotFoundError(
            f"there is no folder {repo_id!r} here and no such model on the Hugging Face hub; "
            "if it is private, log in with `hf auth login` or set HF_TOKEN"
        ) from error
    # HTTPError is the base of all errors of the HTTP library in use; hf-xet, which moves large files, raises
    # RuntimeError.
    except (HTTPError, OSError, RuntimeError) as error:
        raise DownloadError(
            f"there is no folder {repo_id!r} here, and it could not be fetched from the Hugging Face hub: "
            f"{error}; check the network and the free space in {constants.HF_HUB_CACHE}, or give the path of "
            "a model on this disk"
        ) from error
