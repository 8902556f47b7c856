"""Where fetched aliases lie on this disk. Hugging Face models stay in that library's own cache.

A model file has its name only once every byte of it was verified (see `fetch.py`), so that finding it again
is a look at its size and never a second hash.
"""

from __future__ import annotations

import os
from pathlib import Path

from octavo.hub.aliases import Alias


def cache_folder() -> Path:
    """The cache's root: `$OCTAVO_CACHE`, else `octavo` in the user's XDG cache. It need not exist yet."""
    if chosen := os.environ.get("OCTAVO_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo"


def alias_folder(alias: Alias) -> Path:
    """The folder of an alias's model file and its notices. It need not exist yet."""
    return cache_folder() / "models" / alias.name


def cached_file(alias: Alias, folder: Path) -> Path | None:
    """The model file of `alias` in `folder`, or None where it is not there in full."""
    path = folder / alias.file_name
    try:
        return path if path.stat().st_size == alias.size_bytes else None
    except OSError:
        return None
