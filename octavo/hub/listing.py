"""Lists the models that can be run by name: the aliases, and the Hugging Face models on this disk."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.hub.aliases import ALIASES, Alias
from octavo.hub.cache import alias_folder, cached_file

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, CachedRevisionInfo


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model in the list. `path` and `fetched_at` are None if it is not on this disk."""

    name: str
    description: str
    size_bytes: int
    path: Path | None = None
    fetched_at: datetime | None = None

    @property
    def is_cached(self) -> bool:
        """Whether the model is on this disk."""
        return self.path is not None


def available_models() -> list[ListedModel]:
    """Every alias, whether it is on this disk or not, and then every Hugging Face model on this disk."""
    return [*map(_list_alias, ALIASES.values()), *_hugging_face_models()]


def _list_alias(alias: Alias) -> ListedModel:
    path = cached_file(alias, alias_folder(alias))
    fetched_at = None if path is None else _moment(path.stat().st_mtime)
    return ListedModel(alias.name, alias.description, alias.size_bytes, path, fetched_at)


def _hugging_face_models() -> list[ListedModel]:
    """The repositories in Hugging Face's cache that hold files of a kind Octavo reads, by name."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return []
    rows = [_list_repository(repository) for repository in repositories if repository.repo_type == "model"]
    return sorted((row for row in rows if row is not None), key=lambda row: row.name)


def _list_repository(repository: CachedRepoInfo) -> ListedModel | None:
    readable = [(revision, kind) for revision in repository.revisions if (kind := _kind(revision))]
    if not readable:
        return None
    newest, kind = max(readable, key=lambda pair: pair[0].last_modified)
    fetched_at = _moment(newest.last_modified)
    return ListedModel(
        repository.repo_id, f"{kind} from Hugging Face", newest.size_on_disk, newest.snapshot_path, fetched_at
    )


def _kind(revision: CachedRevisionInfo) -> str:
    """The kind of model in a snapshot, in words; "" if it has no files that Octavo reads."""
    names = {file.file_name for file in revision.files}
    if "config.json" in names and any(name.endswith(".safetensors") for name in names):
        return "safetensors"
    return "GGUF" if any(name.endswith(".gguf") for name in names) else ""


def _moment(timestamp_s: float) -> datetime:
    return datetime.fromtimestamp(timestamp_s, UTC)
