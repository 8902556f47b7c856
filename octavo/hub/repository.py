"""Fetches files from the Hugging Face hub into that library's own cache, with its progress bars.

`selection.py` decides which files of a repository are needed.
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
    """Fetch the files that `select` chooses from `org/name` or `org/name:CHOICE`. Returns the path of the
    folder, or of the GGUF file in it.

    With `offline`, and if the hub cannot be asked for its files (as with HF_HUB_OFFLINE=1), a cached snapshot
    is used if it is complete. Raises ModelNotFoundError if there is no such repository, revision or file, or
    with `offline` none in the cache. Raises DownloadError, with the cause, if the hub refuses or cannot be
    reached, or if the files cannot be stored.
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
    """The paths of the repository's files on the hub. Raises as `_failures_explained` does."""
    with _failures_explained(repo_id, revision):
        return [file.rfilename for file in HfApi().model_info(repo_id, revision=revision).siblings or []]


def _download(repo_id: str, selection: Selection, revision: str | None) -> Path:
    """Fetch the selected files. Returns the snapshot's folder. Raises as `_failures_explained` does."""
    with _failures_explained(repo_id, revision):
        for files in filter(None, (selection.companions, selection.weights)):
            folder = Path(snapshot_download(repo_id, revision=revision, allow_patterns=list(files)))
        # If the connection fails, the library returns the cached files without an error.
        if missing := _missing(selection, folder):
            raise ConnectionError(f"the hub did not send {', '.join(missing)}")
    return folder


def _find_cached(repo_id: str, choice: str, select: Select, revision: str | None) -> Path:
    """The folder or the GGUF file in the cache. Raises ModelNotFoundError if it is missing or incomplete."""
    wanted = f"revision {revision!r} of {repo_id}" if revision else repo_id
    try:
        # Without patterns the library returns the cached snapshot even if only a part of it was fetched.
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
    """Turn the hub's refusals, and all other failures of a transfer, into errors that say what to do.

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
