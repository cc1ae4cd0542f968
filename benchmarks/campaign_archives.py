"""Data files that somebody altered: what happens to a user who unpacks and reads them?

    python benchmarks/campaign_archives.py --count 1000

Each is made from a small valid file of one of three formats (CIFAR's tar.gz, MNIST's gzipped idx, SVHN's MATLAB file):
bytes changed, cut out or repeated, before or after packing; members of archives with names, types and sizes that no
data set has; content that swells. Its checksum is given as the published one, so that it is unpacked at all. Every one
must end in images or in a FireflyError, write nothing outside its folder, and take no more memory than the data set.
"""

import gzip
import hashlib
import io
import json
import random
import struct
import tarfile
import tempfile
import tracemalloc
import zlib
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

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
SIZES = [0, 1, 511, 512, 513, 10**6, 10**9, 2**63, -1]


def altered_archives(count: int, seed: int = 0) -> dict[str, Any]:
    """Try so many altered files; `raw` and `outside` tell what must not happen."""
    told: dict[str, Any] = {"archives": count, "read": 0, "refused": 0, "raw": [], "outside": [], "peak_bytes": 0}
    for number in range(count):
        rng = random.Random(f"{seed}-{number}")
        kind = rng.choice(["tar", "tar", "idx", "mat"])
        with tempfile.TemporaryDirectory() as sandbox:
            try_one(kind, alter(kind, rng), Path(sandbox), f"{seed}-{number}", told)
    return told


def try_one(kind: str, raw: bytes, sandbox: Path, name: str, told: dict[str, Any]) -> None:
    """Fetch and load one altered file in a folder of its own."""
    root, place = sandbox / "root", download.ADDRESSES[SET[kind]][0]
    write_others(kind, root)
    changed = root / place.path
    changed.write_bytes(raw)
    mine = download.Remote(place.path, hashlib.md5(raw).hexdigest(), ())
    before = download.ADDRESSES[SET[kind]]
    download.ADDRESSES[SET[kind]] = [mine]
    tracemalloc.start()
    try:
        download.fetch(SET[kind], root, progress=False)
        data.load(SET[kind], root)
        told["read"] += 1
    except FireflyError as error:
        told["refused"] += 1
        if str(root) not in str(error):
            told["raw"].append(f"{name} ({kind}): names no file: {error}")
    except Exception as error:
        told["raw"].append(f"{name} ({kind}): {type(error).__name__}: {error}")
    finally:
        told["peak_bytes"] = max(told["peak_bytes"], tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        download.ADDRESSES[SET[kind]] = before
    allowed = {changed, *(root / file for file in data.SETS[SET[kind]].train + data.SETS[SET[kind]].test)}
    files = {path for path in sandbox.rglob("*") if not path.is_dir()}
    told["outside"] += [f"{name} ({kind}): {path}" for path in sorted(files - allowed)]


# ---- valid files -----------------------------------------------------------------------------------------------------


def write_others(kind: str, root: Path) -> None:
    """The files of the data set beside the altered one."""
    root.mkdir()
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


def alter(kind: str, rng: random.Random) -> bytes:
    """One altered file, packed."""
    way = rng.randrange(6 if kind == "tar" else 4)
    if way == 0:
        return damage(pack(kind, make_valid(kind)), rng)
    if way == 1:
        return pack(kind, damage(make_valid(kind), rng))
    if way == 2:
        return pack(kind, make_valid(kind)) + damage(pack(kind, make_valid(kind)), rng)
    if way == 3:
        return swell(kind, rng)
    return gzip.compress(make_hostile(rng), 1, mtime=0)


def damage(raw: bytes, rng: random.Random) -> bytes:
    """Bytes changed, cut off, cut out or repeated."""
    changed = bytearray(raw)
    place = rng.randrange(len(raw))
    way = rng.randrange(5)
    if way == 0:
        del changed[place:]
    elif way == 1:
        del changed[place : place + rng.randrange(1, 2000)]
    elif way == 2:
        changed[place:place] = raw[: rng.randrange(1, 2000)]
    else:
        near = rng.choice([64, 600, len(raw)])  # headers are the tenderest part
        for _ in range(rng.randrange(1, 9)):
            changed[rng.randrange(min(near, len(raw)))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
    return bytes(changed)


def swell(kind: str, rng: random.Random) -> bytes:
    """A file that stands for hundreds of megabytes of zeros."""
    zeros = bytes(rng.choice([10**6, 10**8, 3 * 10**8]))
    if kind == "mat":
        return pack(kind, struct.pack("<II", 14, len(zeros)) + zeros)
    start = make_valid(kind)
    return gzip.compress(start[: rng.choice([8, 512, len(start)])], 1) + gzip.compress(zeros, 1)


def make_hostile(rng: random.Random) -> bytes:
    """A tar whose members have names, types, sizes and extended headers that no data set has."""
    buffer = io.BytesIO()
    for _ in range(rng.randrange(1, 6)):
        info = tarfile.TarInfo(rng.choice(NAMES + WANTED))
        info.type, info.linkname = (
            rng.choice(KINDS),
            rng.choice(["", "/etc/passwd", "..", WANTED[0]]),
        )
        info.mode, info.mtime = rng.choice([0, 0o777, 0o7777]), rng.choice([0, 2**40])
        headers = {
            "path": rng.choice(NAMES),
            "size": rng.choice(["x", "-1", "99999999999999"]),
            "GNU.sparse.major": "1",
        }
        info.pax_headers = {key: value for key, value in headers.items() if rng.random() < 0.2}
        info.size = rng.choice(SIZES)
        try:
            buffer.write(info.tobuf(rng.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])))
        except (ValueError, UnicodeError, OverflowError):  # tarfile will not write it
            info.size, info.pax_headers = 0, {}
            buffer.write(info.tobuf(tarfile.GNU_FORMAT))
        buffer.write(bytes(rng.choice([0, 512, 4096])))
    return buffer.getvalue() + (make_valid("tar") if rng.random() < 0.5 else bytes(1024))


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(json.dumps(altered_archives(options.count, options.seed), indent=1))
