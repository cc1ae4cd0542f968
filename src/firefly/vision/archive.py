"""Unpacking an archive that nobody vouches for: only the files that are wanted, all of them or none.

Names in the archive are never used to write: a file goes to a folder of ours first, and from there to the place we
know for it. What is unpacked is bounded by the size that the data set has; 8 MB can stand for gigabytes.
"""

import gzip
import os
import posixpath
import shutil
import tarfile
import tempfile
from collections.abc import Collection
from pathlib import Path

from firefly.errors import FireflyError, first_line

RECORD = 2 + 3 * 32 * 32  # bytes of the largest image and its labels
SPARE = 1 << 20  # bytes of headers and read-me files


class Bounded(gzip.GzipFile):
    """A gzipped file that may hold `most` bytes."""

    def __init__(self, path: Path, most: int) -> None:
        super().__init__(path)
        self.most = self.left = most

    def read(self, size: int | None = -1) -> bytes:
        every = size is None or size < 0
        chunk = super().read(self.left + 1 if every else min(size or 0, self.left + 1))
        self.left -= len(chunk)
        if self.left < 0:
            raise ValueError(f"it holds more than {self.most:,} bytes")
        return chunk


def unpack(archive: Path, folder: Path, wanted: Collection[str], images: int) -> None:
    """Put the wanted files of a tar.gz of so many images in their places; with one missing or a link in it, none is."""
    most = images * RECORD + SPARE
    try:
        with (
            tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as shelf,
            Bounded(archive, most) as stream,
            tarfile.open(fileobj=stream, mode="r|") as tar,
        ):
            found = take_members(tar, wanted, Path(shelf), archive, most)
            missing = [name for name in wanted if name not in found]
            if missing:
                raise FireflyError(f"{archive} does not hold {', '.join(missing)}: nothing unpacked; delete it")
            for name, path in found.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, folder / name)
    except FireflyError:
        raise
    except Exception as error:  # an archive may hold anything, and tarfile fails in a dozen ways
        if isinstance(error, OSError) and error.strerror:
            raise FireflyError(f"{archive} cannot be unpacked into {folder}: {error}") from error
        raise FireflyError(
            f"{archive} cannot be unpacked ({first_line(error)}): delete it and fetch it again with: firefly data get"
        ) from error


def take_members(
    tar: tarfile.TarFile, wanted: Collection[str], shelf: Path, archive: Path, most: int
) -> dict[str, Path]:
    """Copy the wanted files onto the shelf, each under a number, and refuse what no data set has."""
    found: dict[str, Path] = {}
    for number, member in enumerate(tar):
        if not 0 <= member.size <= most:  # before tarfile looks for its end
            raise ValueError(f"{member.name!r} is said to have {member.size:,} bytes")
        if not is_plain(member):
            raise FireflyError(
                f"{archive} holds {member.name!r}, which is no plain file below its folder: nothing unpacked. "
                "Delete it and fetch it again with: firefly data get"
            )
        name = posixpath.normpath(member.name)
        if member.isfile() and name in wanted:
            source = tar.extractfile(member)
            assert source is not None  # only links and folders have none
            found[name] = shelf / str(number)
            with source, found[name].open("wb") as file:
                shutil.copyfileobj(source, file)
    return found


def is_plain(member: tarfile.TarInfo) -> bool:
    """Whether a member is a file or a folder below the place where it is unpacked."""
    name = posixpath.normpath(member.name)  # "" and "./" are "."
    inside = not name.startswith(("/", "..")) and "\0" not in name and "\\" not in name
    return inside and (member.isdir() or (member.isfile() and not member.issparse() and name != "."))
