"""Fetching the data sets of the experiments (Sec. 3) from their official addresses.

Every file is written beside its place as `.part`, goes on from there after an interruption, is compared with its
published MD5 and only then renamed; archives are unpacked without ever writing outside their folder.
"""

import hashlib
import os
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from firefly.errors import FireflyError
from firefly.progress import Line
from firefly.vision.data import SETS, find_file, find_name, find_root

CHUNK = 1 << 18
TIMEOUT = 30  # seconds without a byte


@dataclass(frozen=True)
class Remote:
    """One file to fetch: where it goes below the root, its MD5, and the folders on the net that hold its name."""

    path: str
    md5: str
    hosts: tuple[str, ...]


TORONTO = ("https://www.cs.toronto.edu/~kriz/",)
LECUN = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
ZALANDO = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)
STANFORD = ("http://ufldl.stanford.edu/housenumbers/",)

ADDRESSES = {
    "cifar10": [Remote("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", TORONTO)],
    "cifar100": [Remote("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", TORONTO)],
    "mnist": [
        Remote("MNIST/raw/train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", LECUN),
        Remote("MNIST/raw/train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", LECUN),
        Remote("MNIST/raw/t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", LECUN),
        Remote("MNIST/raw/t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", LECUN),
    ],
    "fashion-mnist": [
        Remote("FashionMNIST/raw/train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", ZALANDO),
        Remote("FashionMNIST/raw/train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", ZALANDO),
        Remote("FashionMNIST/raw/t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", ZALANDO),
        Remote("FashionMNIST/raw/t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", ZALANDO),
    ],
    "svhn": [
        Remote("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", STANFORD),
        Remote("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", STANFORD),
    ],
}


def fetch(name: str, root: str | Path | None = None, progress: bool = True) -> Path:
    """Fetch what is missing of a data set into `root` (default as in `load`) and return the folder."""
    name, folder = find_name(name), find_root(root)
    wanted = SETS[name].train + SETS[name].test
    for remote in ADDRESSES[name]:
        archive = remote.path.endswith(".tar.gz")
        gives = wanted if archive else (remote.path.removesuffix(".gz"),)
        if all(find_file(folder, file) for file in gives):
            continue
        path = folder / remote.path
        fetch_file(remote, path, progress)
        if archive:
            unpack(path, folder)
            path.unlink()
    missing = [file for file in wanted if find_file(folder, file) is None]
    if missing:
        raise FireflyError(f"{name}: fetched, but {', '.join(missing)} did not come; look into {folder.absolute()}")
    return folder


def fetch_file(remote: Remote, path: Path, progress: bool = True) -> None:
    """Write a remote file to `path`, from the first of its addresses that gives it whole."""
    failures = []
    part = path.with_name(path.name + ".part")
    for host in remote.hosts:
        address = host + path.name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            transfer(address, part, progress)
            check(part, remote.md5)
            os.replace(part, path)
            return
        except (OSError, HTTPException) as error:
            failures.append(f"{address}: {error}")
    raise FireflyError(
        f"could not fetch {path.name}:\n  " + "\n  ".join(failures) + "\n"
        f"Run the command again to go on where it stopped, or put the file there by hand: {path.absolute()}"
    )


def transfer(address: str, part: Path, progress: bool = True) -> None:
    """Append what `part` still lacks of an address; a server that cannot resume starts it over."""
    done = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "firefly-descent"} | ({"Range": f"bytes={done}-"} if done else {})
    try:
        response = urlopen(Request(address, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == 416 and done:  # nothing after these bytes: the checksum decides
            return
        raise
    with response:
        if response.status != 206:
            done = 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        with part.open("ab" if done else "wb") as file:
            done = copy(response, file, done, show(part.stem, total, progress))
    if total is not None and done < total:
        raise OSError(f"the connection closed after {done:,} of {total:,} bytes")


def copy(response: IO[bytes], file: IO[bytes], done: int, report: Callable[[int, bool], None]) -> int:
    """Copy a response to a file chunk by chunk, and return how long the file is then."""
    while chunk := response.read(CHUNK):
        file.write(chunk)
        done += len(chunk)
        report(done, False)
    report(done, True)
    return done


def show(name: str, total: int | None, progress: bool) -> Callable[[int, bool], None]:
    """A function that shows on stderr how far a file is."""
    line, of = Line(progress), f" of {total / 1e6:.1f}" if total else ""
    return lambda done, end: line(f"{name}: {done / 1e6:.1f}{of} MB", last=end)


def check(part: Path, md5: str) -> None:
    """Delete and refuse a file whose MD5 is not the published one."""
    with part.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != md5:
        part.unlink()
        raise OSError(f"wrong checksum: MD5 {found}, published {md5}")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive of plain files and folders; with anything else in it, or a path outside, nothing is."""
    try:
        with tarfile.open(archive) as tar:
            members = tar.getmembers()
            for member in members:
                inside = (folder / member.name).resolve().is_relative_to(folder.resolve())
                if not (inside and (member.isfile() or member.isdir())):
                    raise FireflyError(
                        f"{archive} holds {member.name!r}, no plain file below {folder}: nothing unpacked"
                    )
            for member in members:
                write_member(tar, member, folder / member.name)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise FireflyError(f"{archive} cannot be unpacked ({error}): delete it and fetch it again") from error


def write_member(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """Write one file of an archive under another name first, so that an interrupted one never looks whole."""
    source = tar.extractfile(member)
    if source is None:  # a folder
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with source, part.open("wb") as file:
        shutil.copyfileobj(source, file)
    os.replace(part, path)
