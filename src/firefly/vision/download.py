"""Fetching the data sets of the experiments (Sec. 3) from their official addresses.

Every file is written beside its place as `.part`, goes on from there after an interruption, is compared with its
published MD5 and only then renamed. An archive that lies there already, put by hand, is compared and unpacked.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from firefly.errors import FireflyError
from firefly.progress import Line
from firefly.vision.archive import unpack
from firefly.vision.data import SETS, find_file, find_name, find_root

CHUNK = 1 << 18
TIMEOUT = 30  # seconds without a byte
LARGEST = 200_000_000  # bytes: no file of the sets has more


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
    make_folder(folder)
    wanted = SETS[name].train + SETS[name].test
    for remote in ADDRESSES[name]:
        archive = remote.path.endswith(".tar.gz")
        gives = wanted if archive else (remote.path.removesuffix(".gz"),)
        if all(find_file(folder, file) for file in gives):
            continue
        path = folder / remote.path
        by_hand = path.is_file()
        if by_hand:
            check(path, remote.md5)
        else:
            fetch_file(remote, path, progress)
        if archive:
            unpack(path, folder, wanted, sum(SETS[name].images))
            if not by_hand:
                path.unlink()
    return folder


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FireflyError(f"cannot make the folder {folder}: {error.strerror}; give another one") from error


def fetch_file(remote: Remote, path: Path, progress: bool = True) -> None:
    """Write a remote file to `path`, from the first of its addresses that gives it whole."""
    failures = []
    part = path.with_name(path.name + ".part")
    for host in remote.hosts:
        address = host + path.name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            transfer(address, part, progress)
            found = find_md5(part)
            if found == remote.md5:
                os.replace(part, path)
                return
            part.unlink()
            failures.append(f"{address}: wrong checksum: MD5 {found}, published {remote.md5}")
        except (OSError, HTTPException, ValueError) as error:
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
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdecimal() else None  # without it the checksum decides
        with part.open("ab" if done else "wb") as file:
            done = copy(response, file, done, show(part.stem, total, progress))
    if total is not None and done < total:
        raise OSError(f"the connection closed after {done:,} of {total:,} bytes")


def copy(response: IO[bytes], file: IO[bytes], done: int, report: Callable[[int, bool], None]) -> int:
    """Copy a response to a file chunk by chunk, and return how long the file is then."""
    while chunk := response.read(CHUNK):
        file.write(chunk)
        done += len(chunk)
        if done > LARGEST:
            raise OSError(f"more than {LARGEST:,} bytes came, and no file of the data sets has so many")
        report(done, False)
    report(done, True)
    return done


def show(name: str, total: int | None, progress: bool) -> Callable[[int, bool], None]:
    """A function that shows on stderr how far a file is."""
    line, of = Line(progress), f" of {total / 1e6:.1f}" if total else ""
    return lambda done, end: line(f"{name}: {done / 1e6:.1f}{of} MB", last=end)


def find_md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def check(path: Path, md5: str) -> None:
    """Refuse a file, put there by hand, that is not the published one."""
    try:
        found = find_md5(path)
    except OSError as error:
        raise FireflyError(f"{path} cannot be read: {error.strerror}; it must be a file you may read") from error
    if found != md5:
        raise FireflyError(
            f"{path} has the MD5 {found}, the published file {md5}: it is cut off or another one. "
            "Delete it and run the command again"
        )
