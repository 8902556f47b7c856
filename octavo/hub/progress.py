"""Shows the progress of a fetch to the user: lines and bars on standard error."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tqdm import tqdm


def announce(text: str) -> None:
    """Write one line to standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def progress_bar(description: str, size_bytes: int) -> tqdm[None]:
    """A bar over `size_bytes`, which disappears when it is closed. Shown only on a terminal."""
    from tqdm import tqdm

    # disable=None tells tqdm to show the bar only on a terminal.
    return tqdm(total=size_bytes, desc=description, unit="B", unit_scale=True, leave=False, disable=None)


def format_size(size_bytes: int) -> str:
    """`size_bytes` for people, in decimal units: 98_362_432 is "98.4 MB"."""
    for unit, unit_bytes in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:.1f} {unit}"
    return f"{size_bytes} B"
