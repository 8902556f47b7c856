"""Where fetched aliases lie on this disk. Hugging Face models stay in that library's own cache.

A model file has its name only once every byte of it was verified (see `fetch.py`), so that using it takes a
look at its size and no second hash.
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
    """What is no folder though `folder` is to be it or to lie in it; None where nothing is in the way."""
    existing = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), None)
    return None if existing is None or existing.is_dir() else existing


def cached_file(alias: Alias, folder: Path) -> Path | None:
    """The model file of `alias` in `folder`, or None where it is not there in full."""
    path = folder / alias.file_name
    try:
        return path if path.stat().st_size == alias.size_bytes else None
    except OSError:
        return None
