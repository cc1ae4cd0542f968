"""The data sets of the experiments (Sec. 3), from their standard files: CIFAR-10/100, MNIST, FashionMNIST, SVHN.

`load` gives a whole split as two tensors, small enough to live on the device for a whole run; `hold_out` sets training
images apart for choices that must not see the test set; `normalize` and `augment` work on batches where they lie.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from firefly.errors import FireflyError
from firefly.vision.readers import Arrays, demand, read_cifar, read_digits, read_svhn, reading


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
    train, paths = split == "train", []
    for file in source.train if train else source.test:
        path = find_file(folder, file)
        if path is None:
            raise FireflyError(
                f"{name}: no {file} in {folder.absolute()}. Fetch it with: firefly data get {name} --data {folder}"
            )
        paths.append(path)
    images, labels = source.read(paths, source.images[0 if train else 1])
    with reading(paths[-1]):
        demand(len(images) == len(labels) > 0, f"{len(images)} images and {len(labels)} labels")
        demand(int(labels.max()) < source.classes, f"label {labels.max()} where {source.classes} classes are")
    return Images(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)), source.classes, name)


def find_name(name: str) -> str:
    """The name as `SETS` spells it; case, dashes and underscores do not matter."""
    plain = str(name).lower().replace("-", "").replace("_", "")
    for known in SETS:
        if known.replace("-", "") == plain:
            return known
    raise FireflyError(f"unknown data set {name!r}: known are {', '.join(SETS)}")


def find_root(root: str | Path | None = None) -> Path:
    """The folder of all data sets: the argument, else the environment's FIREFLY_DATA, else data/."""
    folder = root or os.environ.get("FIREFLY_DATA") or "data"
    if not isinstance(folder, (str, Path)) or "\0" in str(folder):
        raise FireflyError(f"{str(folder)!r} is not a folder for the data sets: give its path")
    return Path(folder)


def find_file(folder: Path, file: str) -> Path | None:
    """Where a file of a data set lies, plain or gzipped, or None."""
    return next((path for path in (folder / file, folder / f"{file}.gz") if path.is_file()), None)


def hold_out(data: Images, count: int = 5000, seed: int = 0) -> tuple[Images, Images]:
    """Part a training set in two, (the rest, `count` held out), each class in its proportion; the same for a seed."""
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count < len(data):
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


@dataclass(frozen=True)
class Source:
    """What is known of a data set: classes, how many images, statistics of its training images, files, their reader."""

    classes: int
    images: tuple[int, int]  # for training, for the test
    mean: tuple[float, ...]  # per channel, in [0, 1]
    std: tuple[float, ...]
    train: tuple[str, ...]  # files, relative to the root
    test: tuple[str, ...]
    read: Callable[[list[Path], int], Arrays]  # of paths that hold at most so many images


def name_idx(folder: str, split: str) -> tuple[str, ...]:
    """The image file and the label file of a split, as MNIST and FashionMNIST name them."""
    return f"{folder}/raw/{split}-images-idx3-ubyte", f"{folder}/raw/{split}-labels-idx1-ubyte"


SETS = {
    "cifar10": Source(
        10,
        (50_000, 10_000),
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
        train=tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)),
        test=("cifar-10-batches-bin/test_batch.bin",),
        read=partial(read_cifar, label_bytes=1),
    ),
    "cifar100": Source(
        100,
        (50_000, 10_000),
        (0.5071, 0.4865, 0.4409),
        (0.2673, 0.2564, 0.2762),
        train=("cifar-100-binary/train.bin",),
        test=("cifar-100-binary/test.bin",),
        read=partial(read_cifar, label_bytes=2),
    ),
    "mnist": Source(
        10,
        (60_000, 10_000),
        (0.1307,),
        (0.3081,),
        train=name_idx("MNIST", "train"),
        test=name_idx("MNIST", "t10k"),
        read=read_digits,
    ),
    "fashion-mnist": Source(
        10,
        (60_000, 10_000),
        (0.2860,),
        (0.3530,),
        train=name_idx("FashionMNIST", "train"),
        test=name_idx("FashionMNIST", "t10k"),
        read=read_digits,
    ),
    "svhn": Source(
        10,
        (73_257, 26_032),
        (0.4377, 0.4438, 0.4728),
        (0.1980, 0.2010, 0.1970),
        train=("train_32x32.mat",),
        test=("test_32x32.mat",),
        read=read_svhn,
    ),
}
