"""Data files that somebody altered: every one is refused in words or read, and writes nothing outside its folder.

Each is made from a small valid file of one of three formats (CIFAR's tar.gz, MNIST's gzipped idx, SVHN's MATLAB file):
bytes changed, cut out or repeated, before or after packing; members of archives with names, types and sizes that no
data set has; content that swells. Its checksum is given as the published one, so that it is unpacked at all. None may
take much more memory than the whole data set.
"""

import gzip
import hashlib
import io
import random
import shutil
import struct
import tarfile
import tracemalloc
import zlib
from pathlib import Path

from attacks.run import Tally
from firefly.errors import FireflyError
from firefly.vision import data, download

SET = {"tar": "cifar100", "idx": "mnist", "mat": "svhn"}
WANTED = ["cifar-100-binary/train.bin", "cifar-100-binary/test.bin"]
NAMES = [
    "",
    ".",
    "./",
    "..",
    "../x",
    "/x",
    "a/../../x",
    "a\0b",
    "cifar-100-binary",
    "x" * 300,
    "cifar-100-binary/..",
    "\\",
]
KINDS = [b"0", b"\0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"L", b"K", b"x", b"g", b"S", b"V", b"?"]
MOST = 600_000_000  # bytes of memory: SVHN has 225 million, packed and unpacked
SIZES = [0, 1, 511, 512, 513, 10**6, 10**9, 2**63, -1]


def attack(count: int, folder: Path, seed: int) -> Tally:
    """Try so many altered files, each in a folder of its own."""
    tally = Tally()
    for number in range(count):
        luck = random.Random(f"{seed}-{number}")
        kind = luck.choice(["tar", "tar", "idx", "mat"])
        try_one(kind, alter(kind, luck), folder / f"{kind}-{number}", tally)
    return tally


def try_one(kind: str, raw: bytes, folder: Path, tally: Tally) -> None:
    """Fetch and load one altered file."""
    root, place, before = folder / "root", download.ADDRESSES[SET[kind]][0], download.ADDRESSES[SET[kind]]
    write_others(kind, root)
    changed = root / place.path
    changed.write_bytes(raw)
    download.ADDRESSES[SET[kind]] = [download.Remote(place.path, hashlib.md5(raw).hexdigest(), ())]
    tracemalloc.start()
    try:
        download.fetch(SET[kind], root, progress=False)
        data.load(SET[kind], root)
        tally.count("read")
    except FireflyError as error:
        tally.count("refused")
        if str(root) not in str(error):
            tally.blame("raw", f"{folder.name}: names no file: {error}")
    except Exception as error:
        tally.count("raw")
        tally.blame("raw", f"{folder.name}: {type(error).__name__}: {error}")
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        download.ADDRESSES[SET[kind]] = before
    if peak > MOST:
        tally.blame("lost", f"{folder.name}: {peak:,} bytes of memory")
    allowed = {changed, *(root / file for file in data.SETS[SET[kind]].train + data.SETS[SET[kind]].test)}
    for path in {path for path in folder.rglob("*") if not path.is_dir()} - allowed:
        tally.blame("changed", f"{folder.name}: wrote {path}")
    shutil.rmtree(folder)


# ---- valid files -----------------------------------------------------------------------------------------------------


def write_others(kind: str, root: Path) -> None:
    """The files of the data set beside the altered one."""
    root.mkdir(parents=True)
    if kind == "idx":
        (root / "MNIST/raw").mkdir(parents=True)
        (root / "MNIST/raw/train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + struct.pack(">I", 2) + b"\1\2")


def make_valid(kind: str) -> bytes:
    """A small valid file, not yet packed."""
    if kind == "tar":
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name in WANTED:
                add(tar, tarfile.TarInfo(name), bytes(3074))
        return buffer.getvalue()
    if kind == "idx":
        return b"\0\0\x08\x03" + struct.pack(">III", 2, 28, 28) + bytes(range(196)) * 8
    return make_matrix("X", 9, (32, 32, 3, 2), bytes(6144)) + make_matrix("y", 9, (2, 1), b"\1\2")


def make_matrix(name: str, kind: int, shape: tuple[int, ...], values: bytes) -> bytes:
    """One numeric array of a MATLAB 5 file."""
    parts = [(6, struct.pack("<II", kind, 0)), (5, struct.pack(f"<{len(shape)}i", *shape)), (1, name.encode())]
    body = b"".join(
        struct.pack("<II", tag, len(raw)) + raw + bytes(-len(raw) % 8) for tag, raw in [*parts, (2, values)]
    )
    return struct.pack("<II", 14, len(body)) + body


def add(tar: tarfile.TarFile, info: tarfile.TarInfo, content: bytes) -> None:
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def pack(kind: str, raw: bytes) -> bytes:
    """As it comes from the net: gzipped, or the elements of the MATLAB file deflated."""
    if kind != "mat":
        return gzip.compress(raw, 1, mtime=0)
    squeezed = zlib.compress(raw[: len(raw) // 2], 1), zlib.compress(raw[len(raw) // 2 :], 1)
    try:
        size = 8 + struct.unpack_from("<I", raw, 4)[0]
        squeezed = zlib.compress(raw[:size], 1), zlib.compress(raw[size:], 1)
    except struct.error:
        pass
    body = b"".join(struct.pack("<II", 15, len(part)) + part for part in squeezed)
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM" + body


# ---- alterations -----------------------------------------------------------------------------------------------------


def alter(kind: str, luck: random.Random) -> bytes:
    """One altered file, packed."""
    way = luck.randrange(6 if kind == "tar" else 4)
    if way == 0:
        return damage(pack(kind, make_valid(kind)), luck)
    if way == 1:
        return pack(kind, damage(make_valid(kind), luck))
    if way == 2:
        return pack(kind, make_valid(kind)) + damage(pack(kind, make_valid(kind)), luck)
    if way == 3:
        return swell(kind, luck)
    return gzip.compress(make_hostile(luck), 1, mtime=0)


def damage(raw: bytes, luck: random.Random) -> bytes:
    """Bytes changed, cut off, cut out or repeated."""
    changed = bytearray(raw)
    place = luck.randrange(len(raw))
    way = luck.randrange(5)
    if way == 0:
        del changed[place:]
    elif way == 1:
        del changed[place : place + luck.randrange(1, 2000)]
    elif way == 2:
        changed[place:place] = raw[: luck.randrange(1, 2000)]
    else:
        near = luck.choice([64, 600, len(raw)])  # headers are the tenderest part
        for _ in range(luck.randrange(1, 9)):
            changed[luck.randrange(min(near, len(raw)))] = luck.choice([0, 1, 127, 128, 255, luck.randrange(256)])
    return bytes(changed)


def swell(kind: str, luck: random.Random) -> bytes:
    """A file that stands for hundreds of megabytes of zeros."""
    zeros = bytes(luck.choice([10**6, 10**8, 3 * 10**8]))
    if kind == "mat":
        return pack(kind, struct.pack("<II", 14, len(zeros)) + zeros)
    start = make_valid(kind)
    return gzip.compress(start[: luck.choice([8, 512, len(start)])], 1) + gzip.compress(zeros, 1)


def make_hostile(luck: random.Random) -> bytes:
    """A tar whose members have names, types, sizes and extended headers that no data set has."""
    buffer = io.BytesIO()
    for _ in range(luck.randrange(1, 6)):
        info = tarfile.TarInfo(luck.choice(NAMES + WANTED))
        info.type, info.linkname = (
            luck.choice(KINDS),
            luck.choice(["", "/etc/passwd", "..", WANTED[0]]),
        )
        info.mode, info.mtime = luck.choice([0, 0o777, 0o7777]), luck.choice([0, 2**40])
        headers = {
            "path": luck.choice(NAMES),
            "size": luck.choice(["x", "-1", "99999999999999"]),
            "GNU.sparse.major": "1",
        }
        info.pax_headers = {key: value for key, value in headers.items() if luck.random() < 0.2}
        info.size = luck.choice(SIZES)
        try:
            buffer.write(info.tobuf(luck.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])))
        except (ValueError, UnicodeError, OverflowError):  # tarfile will not write it
            info.size, info.pax_headers = 0, {}
            buffer.write(info.tobuf(tarfile.GNU_FORMAT))
        buffer.write(bytes(luck.choice([0, 512, 4096])))
    return buffer.getvalue() + (make_valid("tar") if luck.random() < 0.5 else bytes(1024))
