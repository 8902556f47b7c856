"""The folders of fetched aliases on this disk. Hugging Face models stay in that library's own cache.

A model file gets its name only after every byte was verified (`fetch.py`). So before each use only its size
is checked, and it is not hashed again.
"""

from __future__ import annotations

import os
from pathlib import Path

from octavo.hub.aliases import Alias


def cache_folder() -> Path:
    """The cache's root: `$OCTAVO_CACHE`, else `octavo` in the user's XDG cache. It need not exist yet."""
    if chosen := os.environ.get("OCTAVO_CACHE"):
        return Path(os.path.expanduser(chosen))
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo"


def alias_folder(alias: Alias) -> Path:
    """The folder of an alias's model file and its notices. It need not exist yet."""
    return cache_folder() / "models" / alias.name


def file_in_the_way(folder: Path) -> Path | None:
    """`folder` or a parent of it that exists and is not a folder; None if there is none."""
    existing = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), None)
    return None if existing is None or existing.is_dir() else existing


def cached_file(alias: Alias, folder: Path) -> Path | None:
    """The model file of `alias` in `folder`, or None if it is missing or has another size."""
    path = folder / alias.file_name
    try:
        return path if path.stat().st_size == alias.size_bytes else None
    except OSError:
        return None
