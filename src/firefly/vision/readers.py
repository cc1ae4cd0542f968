"""Reading the standard files of the data sets: CIFAR's binary version, MNIST's idx, SVHN's MATLAB files.

Every reader is told the most images a file can hold, and reads no more than those need: a few packed bytes can stand
for gigabytes. Whatever a damaged file leads to is one error that names it.
"""

import gzip
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firefly.errors import FireflyError, first_line

Arrays = tuple[NDArray[Any], NDArray[Any]]  # images uint8 (N, C, H, W), labels (N,)

SPARE = 1 << 20  # bytes of headers, names and padding beside the images of a file


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a damaged file leads to into an error that names the file."""
    try:
        yield
    except Exception as error:  # a file may hold anything, and its formats fail in a dozen ways
        if isinstance(error, OSError) and error.strerror:
            raise FireflyError(
                f"{path} cannot be read: {error.strerror}; see that it is a file you may read"
            ) from error
        raise FireflyError(
            f"{path} cannot be read ({first_line(error)}): cut off or not the file it should be. "
            "Delete it and fetch it again with: firefly data get"
        ) from error


def demand(condition: bool, otherwise: str) -> None:
    """Refuse a file that is not as it should be."""
    if not condition:
        raise ValueError(otherwise)


def read_bytes(path: Path, most: int) -> bytes:
    """A whole file, unpacked if it is gzipped, that must not hold more than `most` bytes."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        raw = file.read(most + 1)
    demand(len(raw) <= most, f"it holds more than {most:,} bytes")
    return raw


def read_cifar(paths: list[Path], most: int, label_bytes: int) -> Arrays:
    """CIFAR's binary version: per image its label bytes (the last is the class) and three 32 x 32 planes."""
    blocks, size = [], label_bytes + 3 * 32 * 32
    for path in paths:
        with reading(path):
            raw = np.frombuffer(read_bytes(path, most // len(paths) * size), np.uint8)
            demand(len(raw) > 0 and len(raw) % size == 0, f"{len(raw)} bytes are no multiple of {size}")
            blocks.append(raw.reshape(-1, size))
    rows = np.concatenate(blocks)
    planes = np.ascontiguousarray(rows[:, label_bytes:])
    return planes.reshape(-1, 3, 32, 32), rows[:, label_bytes - 1]


def read_digits(paths: list[Path], most: int) -> Arrays:
    """MNIST's two files: images (N, 28, 28) and labels (N,)."""
    images, labels = (read_idx(path, shape, most) for path, shape in zip(paths, ((28, 28), ())))
    return images[:, None], labels


def read_idx(path: Path, shape: tuple[int, ...], most: int) -> NDArray[np.uint8]:
    """One idx file of unsigned bytes: 0, 0, 8, the number of dimensions, their sizes (big-endian), the values."""
    dimensions = 1 + len(shape)
    start = 4 + 4 * dimensions
    with reading(path):
        raw = bytearray(read_bytes(path, start + most * int(np.prod(shape, dtype=int))))
        demand(raw[:4] == bytes([0, 0, 8, dimensions]), f"it starts with {raw[:4].hex()}, not 000008{dimensions:02x}")
        sizes = struct.unpack_from(f">{dimensions}I", raw, 4)
        demand(sizes[1:] == shape, f"its values are of shape {sizes}")
        return np.frombuffer(raw, np.uint8, offset=start).reshape(sizes)


def read_svhn(paths: list[Path], most: int) -> Arrays:
    """SVHN's cropped digits: X (32, 32, 3, N) and y (N, 1), where 10 stands for the digit 0."""
    with reading(paths[0]):
        arrays = read_mat(paths[0], most * (32 * 32 * 3 + 8) + SPARE)
        missing = [name for name in ("X", "y") if name not in arrays]
        demand(not missing, f"it has no {', '.join(missing)}")
        images, labels = arrays["X"], arrays["y"].ravel()
        fits = images.dtype == np.uint8 and images.ndim == 4 and images.shape[:3] == (32, 32, 3)
        demand(fits, f"X is {images.dtype} of shape {images.shape}")
        demand(len(labels) > 0 and labels.min() >= 1 and labels.max() <= 10, "y must hold 1 to 10")
        return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels.astype(np.int64) % 10


def read_mat(path: Path, most: int) -> dict[str, NDArray[Any]]:
    """The numeric arrays of a MATLAB 5 file by name: a header of 128 bytes, then elements, each perhaps deflated."""
    raw = memoryview(read_bytes(path, most))
    order = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}.get(bytes(raw[124:128]))
    if order is None:
        raise ValueError("not a MATLAB 5 file")
    arrays = {}
    for kind, body in split_elements(raw[128:], order):
        if kind == MAT_COMPRESSED:
            whole = inflate(body, most)
            most -= len(whole)
            ((kind, body),) = split_elements(whole, order)
        if kind == MAT_MATRIX:
            (_, flags), (_, shape), (_, name), *values = islice(split_elements(body, order), 4)
            if 6 <= np.frombuffer(flags, order + "u4")[0] & 0xFF <= 15 and values:  # a class of numbers
                flat = np.frombuffer(values[0][1], order + MAT_NUMBERS[values[0][0]])
                arrays[bytes(name).decode()] = flat.reshape(np.frombuffer(shape, order + "i4"), order="F")
    return arrays


def inflate(body: memoryview, most: int) -> memoryview:
    """The content of a deflated element, of at most so many bytes."""
    stream = zlib.decompressobj()
    whole = stream.decompress(body, max(most, 1))  # 0 would mean any number
    demand(stream.eof, f"an element is cut off or holds more than {most:,} bytes")
    return memoryview(whole)


def split_elements(raw: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """The (type, content) of the elements that follow one another; short ones keep their content inside the tag."""
    at = 0
    while at < len(raw):
        kind, size = struct.unpack_from(order + "II", raw, at)
        start = at + 8
        if kind >> 16:
            kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
        demand(start + size <= len(raw), f"an element of {size} bytes is cut off")
        yield kind, raw[start : start + size]
        at = start + size + (0 if kind == MAT_COMPRESSED else (at - start - size) % 8)


MAT_COMPRESSED, MAT_MATRIX = 15, 14
MAT_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
