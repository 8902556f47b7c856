"""Brings a model here from the Hugging Face hub, into that library's own cache and with its progress bars.

Which files of a repository are wanted is decided in `selection.py`.
"""

from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (  # type: ignore[attr-defined]
    GatedRepoError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from octavo.errors import ModelNotFoundError
from octavo.hub.errors import DownloadError
from octavo.hub.selection import select_files


def fetch_repository(reference: str, *, revision: str | None, offline: bool) -> Path:
    """Bring the model `org/name` or `org/name:CHOICE` here; its folder, or the GGUF file chosen in it.

    Where the hub cannot be reached, and with `offline` or HF_HUB_OFFLINE=1, the cached snapshot is used.

    Raises:
        ModelNotFoundError: there is no such repository, revision or file; with `offline`, none in the cache.
        DownloadError: the hub refuses or cannot be reached, and nothing is cached.
    """
    repo_id, _, choice = reference.partition(":")
    if offline:
        return _find_cached(repo_id, choice, revision)
    try:
        return _download(repo_id, choice, revision)
    except GatedRepoError as error:
        raise DownloadError(
            f"{repo_id} is gated. Accept its terms at https://huggingface.co/{repo_id}, "
            "then log in with `hf auth login` or set HF_TOKEN."
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFoundError(
            f"{repo_id} has no revision {revision!r} on the Hugging Face hub."
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelNotFoundError(
            f"there is no folder {repo_id!r} here and no such model on the Hugging Face hub. "
            "If it is private, log in with `hf auth login` or set HF_TOKEN."
        ) from error
    except (HTTPError, OSError) as error:  # HTTPError: the base of all errors of the HTTP library in use
        try:
            return _find_cached(repo_id, choice, revision)
        except ModelNotFoundError:
            raise DownloadError(
                f"there is no folder {repo_id!r} here, and the Hugging Face hub did not answer: {error}. "
                "Check the network, or give the path of a model on this disk."
            ) from error


def _download(repo_id: str, choice: str, revision: str | None) -> Path:
    siblings = HfApi().model_info(repo_id, revision=revision).siblings or []
    selection = select_files(repo_id, [sibling.rfilename for sibling in siblings], choice)
    folder = snapshot_download(repo_id, revision=revision, allow_patterns=list(selection.files))
    return Path(folder, selection.entry)


def _find_cached(repo_id: str, choice: str, revision: str | None) -> Path:
    try:
        # With no pattern to satisfy the snapshot comes back as it lies, even where only a part was fetched.
        folder = snapshot_download(repo_id, revision=revision, local_files_only=True, allow_patterns=[])
    except (LocalEntryNotFoundError, HFValidationError) as error:
        wanted = f"revision {revision!r} of {repo_id}" if revision else repo_id
        raise ModelNotFoundError(
            f"there is no folder {repo_id!r} here, and {wanted} is not in Hugging Face's cache. "
            "Fetch it while online, or give the path of a model on this disk."
        ) from error
    files = [path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file()]
    return Path(folder, select_files(repo_id, files, choice).entry)
