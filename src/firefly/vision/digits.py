"""Real handwritten digits that ship with the package, so that the demo needs no download.

6,000 training and 2,000 test images of MNIST, every tenth and every fifth of its files, 14 x 14 pixels in 16 grey
levels, in `digits.npz` beside this file; `digits.txt` says where they come from and under which licence. From the
files of MNIST (`firefly data get mnist --data DIR`) the same bytes are made by

    pack(data.load("mnist", DIR, "train"), data.load("mnist", DIR, "test"), "digits.npz")
"""

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firefly.errors import FireflyError
from firefly.vision.data import Images

LEVELS = 16


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images (6000, 1, 14, 14) in [0, 1] and labels (6000,), then the same of the 2,000 test images."""
    with files("firefly.vision").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        train, test = (expand_images(arrays[f"{split}_images"]) for split in ("train", "test"))
        train_labels, test_labels = (
            torch.from_numpy(arrays[f"{split}_labels"].astype(np.int64)) for split in ("train", "test")
        )
    return train, train_labels, test, test_labels


def pack(train: Images, test: Images, path: str | Path, counts: tuple[int, int] = (6000, 2000)) -> None:
    """Write evenly spaced images of both splits to one compressed npz, halved in size and in 16 grey levels."""
    arrays: dict[str, Any] = {}
    for split, data, count in zip(("train", "test"), (train, test), counts):
        if not 0 < count <= len(data):
            raise FireflyError(f"cannot pack {count} {split} images of {len(data)}: ask for 1 to {len(data)}")
        chosen = torch.arange(count) * len(data) // count
        arrays[f"{split}_images"] = shrink_images(data.images[chosen])
        arrays[f"{split}_labels"] = data.labels[chosen].numpy().astype(np.uint8)
    np.savez_compressed(path, **arrays)


def shrink_images(images: Tensor) -> NDArray[np.uint8]:
    """Average 2 x 2 pixels, round to 16 levels and put two pixels into a byte: (N, 1, H, W) to (N, H/2, W/4)."""
    number, _, high, wide = images.shape
    sums = images.long().view(number, high // 2, 2, wide // 2, 2).sum((2, 4))  # 0 to 4 * 255
    top, steps = LEVELS - 1, 4 * 255
    levels = ((sums * top + steps // 2) // steps).to(torch.uint8)
    return (levels[..., 0::2] * LEVELS + levels[..., 1::2]).numpy()


def expand_images(packed: NDArray[np.uint8]) -> Tensor:
    """The grey levels of packed images (N, H, W/2) as float images (N, 1, H, W) in [0, 1]."""
    pixels = np.stack([packed // LEVELS, packed % LEVELS], axis=-1)
    number, high, half, _ = pixels.shape
    return torch.from_numpy(pixels.reshape(number, 1, high, 2 * half)).float() / (LEVELS - 1)
