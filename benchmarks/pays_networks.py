"""The networks and tasks of `growth_pays.py`: networks whose every width is a share of its full size."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from firefly.vision import digits
from firefly.vision.data import Images, hold_out, load

Data = Images | tuple[Tensor, Tensor]
START = 0.25  # of the full width


class Block(nn.Module):
    """Two 3 x 3 convolutions around which the stream goes on, through a 1 x 1 convolution where its size changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.last = nn.BatchNorm2d(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.last(self.second(torch.relu(self.norm(self.first(x)))))
        return torch.relu(inner + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, stages of blocks, the mean over the map, a linear head."""

    def __init__(self, widths: list[int], blocks: int, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]))
        layers: list[nn.Module] = []
        before = widths[0]
        for stage, width in enumerate(widths):
            for number in range(blocks):
                layers.append(Block(before, width, 2 if stage and not number else 1))
                before = width
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(before, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(torch.relu(self.stem(x))).mean((2, 3)))
        return out


def make_mlp(widths: list[int]) -> nn.Module:
    """Without norms: 196 pixels, these hidden layers, 10 classes."""
    sizes = [196, *widths]
    hidden = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(sizes[-1], 10))


@dataclass(frozen=True)
class Task:
    """A network at its full widths, its data, and how it is trained."""

    name: str
    data: str
    full: tuple[int, ...]
    blocks: int  # of a stage; 0 for a network without convolutions
    shape: tuple[int, int, int]
    images: int | None  # at most so many for training
    held: int  # images set apart
    recipe: dict[str, Any] = field(default_factory=dict)
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    settings: dict[str, Any] = field(default_factory=dict)

    def make(self, share: float) -> nn.Module:
        widths = [round(share * width) for width in self.full]
        return ResNet(widths, self.blocks, self.shape[0]) if self.blocks else make_mlp(widths)

    def load(self) -> tuple[Data, Data]:
        """Images to train on, and images set apart from the training images; the test images are never read."""
        if self.data == "digits":
            images, labels, *_ = digits.load()
            return (images[self.held :], labels[self.held :]), (images[: self.held], labels[: self.held])
        train, held = hold_out(load(self.data), self.held)
        return (train.take(torch.arange(self.images)) if self.images else train), held

    def invent(self, count: int) -> Data:
        """Random images, to measure seconds only."""
        generator = torch.Generator().manual_seed(count)
        if self.data == "digits":
            return torch.rand(count, *self.shape, generator=generator), torch.arange(count) % 10
        images = torch.randint(256, (count, *self.shape), dtype=torch.uint8, generator=generator)
        return Images(images, torch.randint(10, (count,), generator=generator), 10, self.data)


SGD = {"lr": 0.2, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
TASKS = {
    task.name: task
    for task in (
        Task(
            "resnet20-cifar10",
            "cifar10",
            (16, 32, 64),
            3,
            (3, 32, 32),
            None,
            10_000,
            {"epochs": 60, "batch": 256, "augment": True},
            torch.optim.SGD,
            SGD,
        ),
        Task(
            "resnet-fashion",
            "fashion-mnist",
            (16, 16, 32, 32),
            1,
            (1, 28, 28),
            12_000,
            10_000,
            {"epochs": 12, "batch": 128, "augment": False},
            torch.optim.Adam,
            {"lr": 3e-3},
        ),
        Task(
            "mlp-digits",
            "digits",
            (64, 64),
            0,
            (1, 14, 14),
            None,
            2_000,
            {"epochs": 12, "batch": 64, "augment": False},
            torch.optim.Adam,
            {"lr": 1e-3},
        ),
    )
}
