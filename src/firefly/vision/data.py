"""The data sets of the experiments (Sec. 3), from their standard files: CIFAR-10/100, MNIST, FashionMNIST, SVHN.

`load` gives a whole split as two tensors, small enough to live on the device for a whole run; `hold_out` sets training
images apart for choices that must not see the test set; `normalize` and `augment` work on batches where they lie.
"""

import gzip
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from firefly.errors import FireflyError

Arrays = tuple[NDArray[Any], NDArray[Any]]  # images uint8 (N, C, H, W), labels (N,)


@dataclass(frozen=True, eq=False)
class Images:
    """One split of a data set: `images` uint8 (N, C, H, W) and `labels` int64 (N,), in the files' order."""

    images: Tensor
    labels: Tensor
    classes: int
    name: str

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def mean(self) -> Tensor:
        """The mean of each channel over the training images, in [0, 1]; shape (C,)."""
        return torch.tensor(SETS[find_name(self.name)].mean, device=self.images.device)

    @property
    def std(self) -> Tensor:
        """The standard deviation of each channel over the training images, in [0, 1]; shape (C,)."""
        return torch.tensor(SETS[find_name(self.name)].std, device=self.images.device)

    def take(self, index: Tensor) -> "Images":
        """The images that `index` (numbers or a mask) picks."""
        return replace(self, images=self.images[index], labels=self.labels[index])

    def to(self, device: torch.device | str) -> "Images":
        """The same images on another device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))


def load(name: str, root: str | Path | None = None, split: str = "train") -> Images:
    """Read the "train" or "test" split of a data set of `SETS`; `root` defaults to $FIREFLY_DATA, then to data/."""
    name = find_name(name)
    if split not in ("train", "test"):
        raise FireflyError(f"split={split!r} is not a split of {name}: use 'train' or 'test'")
    source, folder = SETS[name], find_root(root)
    paths = []
    for file in source.train if split == "train" else source.test:
        path = find_file(folder, file)
        if path is None:
            raise FireflyError(
                f"{name}: no {file} in {folder.absolute()}. Fetch it with: firefly data get {name} --data {folder}"
            )
        paths.append(path)
    images, labels = source.read(paths)
    with reading(paths[-1]):
        demand(len(images) == len(labels) > 0, f"{len(images)} images and {len(labels)} labels")
        demand(int(labels.max()) < source.classes, f"label {labels.max()} where {source.classes} classes are")
    return Images(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)), source.classes, name)


def find_name(name: str) -> str:
    """The name as `SETS` spells it; case, dashes and underscores do not matter."""
    plain = name.lower().replace("-", "").replace("_", "")
    for known in SETS:
        if known.replace("-", "") == plain:
            return known
    raise FireflyError(f"unknown data set {name!r}: known are {', '.join(SETS)}")


def find_root(root: str | Path | None = None) -> Path:
    """The folder of all data sets: the argument, else the environment's FIREFLY_DATA, else data/."""
    return Path(root or os.environ.get("FIREFLY_DATA") or "data")


def find_file(folder: Path, file: str) -> Path | None:
    """Where a file of a data set lies, plain or gzipped, or None."""
    return next((path for path in (folder / file, folder / f"{file}.gz") if path.is_file()), None)


def hold_out(data: Images, count: int = 5000, seed: int = 0) -> tuple[Images, Images]:
    """Part a training set in two, (the rest, `count` held out), each class in its proportion; the same for a seed."""
    if not 0 < count < len(data):
        raise FireflyError(f"hold_out: count={count} must lie between 1 and {len(data) - 1}, for {len(data)} images")
    labels = data.labels.cpu()
    sizes = torch.bincount(labels, minlength=data.classes)
    share = sizes.double() * count / len(data)
    quota = share.floor().long()
    left = count - int(quota.sum())  # the largest remainders get one more each
    quota[(share - quota).argsort(descending=True, stable=True)[:left]] += 1
    shuffled = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]  # (N,) class after class, random within
    rank = torch.arange(len(data)) - (sizes.cumsum(0) - sizes)[labels[by_class]]
    held = torch.zeros(len(data), dtype=torch.bool)
    held[by_class[rank < quota[labels[by_class]]]] = True
    held = held.to(data.labels.device)
    return data.take(~held), data.take(held)


def normalize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Zero mean and unit deviation per channel; images uint8, or float in [0, 1], and statistics (C,) on one device."""
    scaled = images.float() / 255 if images.dtype == torch.uint8 else images
    return (scaled - mean.to(scaled.dtype).view(-1, 1, 1)) / std.to(scaled.dtype).view(-1, 1, 1)


def augment(images: Tensor, generator: torch.Generator | None = None, pad: int = 4, flip: bool = True) -> Tensor:
    """Crop each image (N, C, H, W) at its own place after padding with zeros, and mirror each with chance one half.

    All on the images' device, of fixed shapes and without waiting for it, so it can be part of a CUDA graph.
    """
    device = images.device
    numbers, channels, high, wide = (torch.arange(size, device=device) for size in images.shape)

    def draw(below: int) -> Tensor:
        return torch.randint(below, (len(images), 1), device=device, generator=generator)

    rows = high + draw(2 * pad + 1)  # (N, H): which rows of the padded image to read
    mirrored = torch.where(draw(2) == 1, wide.flip(0), wide) if flip else wide
    columns = mirrored + draw(2 * pad + 1)  # (N, W)
    padded = functional.pad(images, (pad, pad, pad, pad))
    return padded[numbers[:, None, None, None], channels[:, None, None], rows[:, None, :, None], columns[:, None, None]]


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a damaged file leads to into an error that names the file."""
    try:
        yield
    except (OSError, EOFError, LookupError, ValueError, struct.error, zlib.error) as error:
        raise FireflyError(
            f"{path} cannot be read ({error}): cut off or not the file it should be. "
            "Delete it and fetch it again with: firefly data get"
        ) from error


def demand(condition: bool, otherwise: str) -> None:
    """Refuse a file that is not as it should be."""
    if not condition:
        raise ValueError(otherwise)


def read_cifar(paths: list[Path], label_bytes: int) -> Arrays:
    """CIFAR's binary version: per image its label bytes (the last is the class) and three 32 x 32 planes."""
    blocks = []
    for path in paths:
        with reading(path):
            raw = np.fromfile(path, np.uint8)
            size = label_bytes + 3 * 32 * 32
            demand(len(raw) > 0 and len(raw) % size == 0, f"{len(raw)} bytes are no multiple of {size}")
            blocks.append(raw.reshape(-1, size))
    rows = np.concatenate(blocks)
    planes = np.ascontiguousarray(rows[:, label_bytes:])
    return planes.reshape(-1, 3, 32, 32), rows[:, label_bytes - 1]


def read_digits(paths: list[Path]) -> Arrays:
    """MNIST's two files: images (N, H, W) and labels (N,)."""
    images, labels = (read_idx(path, dimensions) for path, dimensions in zip(paths, (3, 1)))
    return images[:, None], labels


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """One idx file of unsigned bytes: 0, 0, 8, the number of dimensions, their sizes (big-endian), the values."""
    with reading(path):
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        demand(raw[:4] == bytes([0, 0, 8, dimensions]), f"it starts with {raw[:4].hex()}, not 000008{dimensions:02x}")
        shape = struct.unpack_from(f">{dimensions}I", raw, 4)
        return np.frombuffer(bytearray(raw), np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def read_svhn(paths: list[Path]) -> Arrays:
    """SVHN's cropped digits: X (32, 32, 3, N) and y (N, 1), where 10 stands for the digit 0."""
    with reading(paths[0]):
        arrays = read_mat(paths[0])
        images, labels = arrays["X"], arrays["y"].ravel()
        fits = images.dtype == np.uint8 and images.ndim == 4 and images.shape[:3] == (32, 32, 3)
        demand(fits, f"X is {images.dtype} of shape {images.shape}")
        demand(len(labels) > 0 and labels.min() >= 1 and labels.max() <= 10, "y must hold 1 to 10")
        return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels.astype(np.int64) % 10


def read_mat(path: Path) -> dict[str, NDArray[Any]]:
    """The numeric arrays of a MATLAB 5 file by name: a header of 128 bytes, then elements, each perhaps deflated."""
    raw = memoryview(path.read_bytes())
    order = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}.get(bytes(raw[124:128]))
    if order is None:
        raise ValueError("not a MATLAB 5 file")
    arrays = {}
    for kind, body in split_elements(raw[128:], order):
        if kind == MAT_COMPRESSED:
            ((kind, body),) = split_elements(memoryview(zlib.decompress(body)), order)
        if kind == MAT_MATRIX:
            (_, flags), (_, shape), (_, name), *values = split_elements(body, order)
            if 6 <= np.frombuffer(flags, order + "u4")[0] & 0xFF <= 15 and values:  # a class of numbers
                flat = np.frombuffer(values[0][1], order + MAT_NUMBERS[values[0][0]])
                arrays[bytes(name).decode()] = flat.reshape(np.frombuffer(shape, order + "i4"), order="F")
    return arrays


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


@dataclass(frozen=True)
class Source:
    """What is known of a data set: its classes, statistics of its training images, its files and how to read them."""

    classes: int
    mean: tuple[float, ...]  # per channel, in [0, 1]
    std: tuple[float, ...]
    train: tuple[str, ...]  # files, relative to the root
    test: tuple[str, ...]
    read: Callable[[list[Path]], Arrays]


def name_idx(folder: str, split: str) -> tuple[str, ...]:
    """The image file and the label file of a split, as MNIST and FashionMNIST name them."""
    return f"{folder}/raw/{split}-images-idx3-ubyte", f"{folder}/raw/{split}-labels-idx1-ubyte"


SETS = {
    "cifar10": Source(
        10,
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
        train=tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)),
        test=("cifar-10-batches-bin/test_batch.bin",),
        read=partial(read_cifar, label_bytes=1),
    ),
    "cifar100": Source(
        100,
        (0.5071, 0.4865, 0.4409),
        (0.2673, 0.2564, 0.2762),
        train=("cifar-100-binary/train.bin",),
        test=("cifar-100-binary/test.bin",),
        read=partial(read_cifar, label_bytes=2),
    ),
    "mnist": Source(10, (0.1307,), (0.3081,), name_idx("MNIST", "train"), name_idx("MNIST", "t10k"), read_digits),
    "fashion-mnist": Source(
        10, (0.2860,), (0.3530,), name_idx("FashionMNIST", "train"), name_idx("FashionMNIST", "t10k"), read_digits
    ),
    "svhn": Source(
        10,
        (0.4377, 0.4438, 0.4728),
        (0.1980, 0.2010, 0.1970),
        train=("train_32x32.mat",),
        test=("test_32x32.mat",),
        read=read_svhn,
    ),
}
