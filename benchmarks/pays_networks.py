"""The networks and tasks of `growth_pays.py`: networks whose every width is a share of its full size."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from gpt_text import GPT, judge_text, read_text, sum_text, take_apart
from torch import Tensor, nn

from firefly.training import evaluate
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


def make_gpt(widths: list[int], stream: int, depth: int, each: int) -> nn.Module:
    """Heads and the width of the MLPs, the same in all blocks."""
    return GPT(stream, depth, widths[0], each, widths[1])


@dataclass(frozen=True)
class Task:
    """A network at its full widths, its data, and how it is trained."""

    name: str
    data: str
    build: Callable[[list[int]], nn.Module]
    full: tuple[int, ...]
    shape: tuple[int, ...]
    images: int | None  # at most so many for training
    held: int  # images set apart
    recipe: dict[str, Any] = field(default_factory=dict)
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    settings: dict[str, Any] = field(default_factory=dict)
    rise: float = 0.0  # epochs at the beginning in which the rate rises

    def make(self, share: float) -> nn.Module:
        return self.build([round(share * width) for width in self.full])

    @property
    def example(self) -> Tensor:
        return torch.zeros(2, *self.shape, dtype=torch.int64 if self.data == "text" else torch.float32)

    @property
    def loss(self) -> Any:
        """None for that of classes."""
        return sum_text if self.data == "text" else None

    def judge(self, model: nn.Module, held: Data) -> dict[str, float]:
        """On what was set apart: accuracy and loss, of text the loss per letter."""
        if self.data == "text":
            return {"held_loss": judge_text(model, held)}
        score = evaluate(model, held)
        return {"held_accuracy": score.accuracy, "held_loss": score.loss}

    def load(self) -> tuple[Data, Data]:
        """What to train on, and what was set apart of the training data; test images are never read."""
        if self.data == "text":
            (x, y), held = take_apart(read_text(self.shape[0]), self.held)
            return (x[: self.images], y[: self.images]), held
        if self.data == "digits":
            images, labels, *_ = digits.load()
            return (images[self.held :], labels[self.held :]), (images[: self.held], labels[: self.held])
        train, held = hold_out(load(self.data), self.held)
        return (train.take(torch.arange(self.images)) if self.images else train), held

    def invent(self, count: int) -> Data:
        """Random images, to measure seconds only."""
        generator = torch.Generator().manual_seed(count)
        if self.data == "text":
            letters = torch.randint(90, (count, *self.shape), generator=generator)
            return letters, letters.roll(-1, 1)
        if self.data == "digits":
            return torch.rand(count, *self.shape, generator=generator), torch.arange(count) % 10
        images = torch.randint(256, (count, *self.shape), dtype=torch.uint8, generator=generator)
        return Images(images, torch.randint(10, (count,), generator=generator), 10, self.data)


SGD = {"lr": 0.2, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
ADAMW = {"lr": 2e-3, "betas": (0.9, 0.95), "weight_decay": 0.1}
TASKS = {
    task.name: task
    for task in (
        Task(
            "resnet20-cifar10",
            "cifar10",
            partial(ResNet, blocks=3, channels=3),
            (16, 32, 64),
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
            partial(ResNet, blocks=1, channels=1),
            (16, 16, 32, 32),
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
            make_mlp,
            (64, 64),
            (1, 14, 14),
            None,
            2_000,
            {"epochs": 12, "batch": 64, "augment": False},
            torch.optim.Adam,
            {"lr": 1e-3},
        ),
        Task(  # a GPU
            "gpt-text",
            "text",
            partial(make_gpt, stream=128, depth=4, each=16),
            (8, 512),
            (128,),
            None,
            360,
            {"epochs": 20, "batch": 32, "augment": False},
            torch.optim.AdamW,
            ADAMW,
            rise=0.5,
        ),
        Task(  # two minutes of a CPU
            "gpt-small",
            "text",
            partial(make_gpt, stream=64, depth=2, each=8),
            (8, 256),
            (64,),
            None,
            720,
            {"epochs": 8, "batch": 32, "augment": False},
            torch.optim.AdamW,
            ADAMW,
            rise=0.5,
        ),
    )
}
