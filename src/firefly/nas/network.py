"""The network that a genotype is judged by (App. B.3): its cells stacked, at a third and two thirds one that reduces.

    network = firefly.nas.Network(genotype, cells=20, channels=40, classes=10)

is a plain `nn.Module`: images in, logits out. With `auxiliary` a second head helps to train it (`answer_twice`), and
with `drop_path` operations are switched off at random, for each image by itself, at a rate that grows with the epochs
(`set_drop_path`); both as in DARTS, whose genotypes build as well.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from firefly.errors import FireflyError
from firefly.nas.genotype import Cell, Genotype, read_genotype
from firefly.nas.operations import OPERATIONS, Halve, Separable, convolve, fit_channels
from firefly.training.resident import Batch

AUXILIARY = 0.4  # the weight of the second head's loss


class Block(nn.Module):
    """A cell of the network: its inputs are the outputs of the two cells before it."""

    def __init__(self, cell: Cell, sizes: tuple[int, int], channels: int, reduce: bool, shrunk: bool) -> None:
        super().__init__()
        self.concat = cell.concat
        first = Halve(sizes[0], channels) if shrunk else fit_channels(sizes[0], channels)
        self.inputs = nn.ModuleList([first, fit_channels(sizes[1], channels)])
        self.nodes = nn.ModuleList()
        for node in cell.nodes:
            strides = [2 if reduce and source < 2 else 1 for _, source in node]
            made = [make_operation(name, channels, stride) for (name, _), stride in zip(node, strides)]
            self.nodes.append(nn.ModuleList(made))
        self.sources = [[source for _, source in node] for node in cell.nodes]

    def forward(self, before: Tensor, last: Tensor, rate: Tensor | None = None) -> Tensor:
        states = [self.inputs[0](before), self.inputs[1](last)]
        for node, sources in zip(self.nodes, self.sources):
            values = []
            for operation, source in zip(node, sources):  # type: ignore[call-overload]
                value = operation(states[source])
                identity = isinstance(operation, nn.Identity)
                values.append(value if rate is None or identity else drop(value, rate))
            states.append(sum(values[1:], values[0]))
        return torch.cat([states[number] for number in self.concat], dim=1)


def make_operation(name: str, channels: int, stride: int) -> nn.Module:
    """An operation of a finished network; a norm follows a pooling."""
    made = OPERATIONS[name](channels, stride)
    return nn.Sequential(made, nn.BatchNorm2d(channels, affine=False)) if "pool" in name else made


def drop(values: Tensor, rate: Tensor) -> Tensor:
    """Zero for some images, at this rate, and larger for the others, so that the mean stays."""
    kept = torch.rand(len(values), 1, 1, 1, device=values.device) >= rate
    return values * (kept / (1 - rate)).to(values.dtype)


class Auxiliary(nn.Module):
    """DARTS' second head, for maps of 8 x 8."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.ReLU(),
            nn.AvgPool2d(5, 3, count_include_pad=False),  # 2 x 2 are left
            convolve(channels, 128),
            nn.BatchNorm2d(128),
            nn.ReLU(),
            nn.Conv2d(128, 768, 2, bias=False),
            nn.BatchNorm2d(768),
            nn.ReLU(),
        )
        self.head = nn.Linear(768, classes)

    def forward(self, images: Tensor) -> Tensor:
        if not all(8 <= side <= 10 for side in images.shape[2:]):
            shape = " x ".join(map(str, images.shape[2:]))
            raise FireflyError(
                f"auxiliary=True needs maps of 8 x 8 there (images of 32 x 32), not {shape}: leave it out"
            )
        return self.head(self.features(images).flatten(1))


class Network(nn.Module):
    """A stem, the cells, global average pooling and a linear head.

    - `genotype`: a `Genotype`, or what `read_genotype` takes: DARTS' text, a dict, a file.
    - `cells`: how many; `channels`: of the first ones' operations, doubled where the image is halved.
    - `auxiliary`: a second head for training, on images of 32 x 32. `drop_path`: the rate at the end of training.
    - `colours`: channels of the images.
    - `dense`: depthwise convolutions together with the pointwise ones behind them, which a GPU may do faster; the
      layers, their names and what they compute stay.
    """

    rate: Tensor

    def __init__(
        self,
        genotype: Any,
        cells: int = 20,
        channels: int = 40,
        classes: int = 10,
        *,
        auxiliary: bool = False,
        drop_path: float = 0.0,
        colours: int = 3,
        dense: bool = False,
    ) -> None:
        super().__init__()
        check_options(cells, channels, classes, drop_path)
        self.genotype: Genotype = read_genotype(genotype)
        self.drop_path = drop_path
        stem, wide = 3 * channels, channels
        self.stem = nn.Sequential(nn.Conv2d(colours, stem, 3, padding=1, bias=False), nn.BatchNorm2d(stem))
        self.cells = nn.ModuleList()
        sizes, shrunk, self.branch = (stem, stem), False, 2 * cells // 3
        for number in range(cells):
            stage = find_stage(number, cells)
            cell, reduce = self.genotype.at(stage), stage in (1, 3)
            wide *= 2 if reduce else 1
            self.cells.append(Block(cell, sizes, wide, reduce, shrunk))
            sizes, shrunk = (sizes[1], wide * len(cell.concat)), reduce
            if number == self.branch and auxiliary:
                self.auxiliary: nn.Module | None = Auxiliary(sizes[1], classes)
        if not auxiliary:
            self.auxiliary = None
        self.head = nn.Linear(sizes[1], classes)
        self.register_buffer("rate", torch.zeros(()), persistent=False)
        for module in self.modules():
            if isinstance(module, Separable):
                module.dense = dense

    def forward(self, images: Tensor) -> Tensor:
        return self.answer(images)[0]

    def answer(self, images: Tensor, twice: bool = False) -> tuple[Tensor, Tensor | None]:
        before = last = self.stem(images)
        rate = self.rate if self.training and self.drop_path else None
        middle = None
        for number, cell in enumerate(self.cells):
            before, last = last, cell(before, last, rate)
            if twice and number == self.branch and self.auxiliary is not None:
                middle = self.auxiliary(last)
        return self.head(functional.adaptive_avg_pool2d(last, 1).flatten(1)), middle

    def answer_twice(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """The logits of the head and of the second one (None if there is none)."""
        return self.answer(images, twice=True)

    def set_drop_path(self, done: float) -> None:
        """The rate of drop-path after this share of the training; a captured step sees the change."""
        if not 0 <= done <= 1:
            raise FireflyError(f"set_drop_path({done!r}): give the share of the training that is done, epoch / epochs")
        self.rate.fill_(self.drop_path * done)


def find_stage(number: int, cells: int) -> int:
    """0, 2, 4 for cells that keep the size, 1 and 3 for those at a third and two thirds, which halve it."""
    first, second = cells // 3, 2 * cells // 3
    if number in (first, second):
        return 1 if number == first else 3
    return 0 if number < first else 2 if number < second else 4


def check_options(cells: int, channels: int, classes: int, drop_path: float) -> None:
    for name, value, least in (("cells", cells, 3), ("channels", channels, 2), ("classes", classes, 1)):
        if type(value) is not int or value < least:
            raise FireflyError(f"Network({name}={value!r}): give a whole number from {least} up")
    if not isinstance(drop_path, (int, float)) or not 0 <= drop_path < 1:
        raise FireflyError(f"Network(drop_path={drop_path!r}): give a rate from 0 up to, not including, 1")


def train_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy, with that of the second head where there is one; for `fit(loss=...)`."""
    images, labels = batch
    if not model.training or getattr(model, "auxiliary", None) is None:
        return functional.cross_entropy(model(images).float(), labels)
    logits, second = model.answer_twice(images)  # type: ignore[operator]
    loss = functional.cross_entropy(logits.float(), labels)
    return loss + AUXILIARY * functional.cross_entropy(second.float(), labels)
