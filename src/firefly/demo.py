"""`firefly demo`: a thin convolutional network learns digits and grows on the way, beside networks of fixed width.

Algorithm 1 of the paper on a small scale: train, grow, train, grow, … All networks learn from the same images with the
same optimiser, learning rates and number of epochs. Settings were chosen on images held out of the training set; the
test images serve for the reported figures alone.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import firefly
from firefly.errors import FireflyError
from firefly.vision import digits

Row = dict[str, Any]
GROWN = "grown by Firefly"
FIXED = "same width in every layer"


@dataclass(frozen=True)
class Setting:
    """What a run is made with."""

    start: tuple[int, ...] = (4, 4, 4, 4)  # channels of each convolution before the first growth
    fixed: tuple[int, ...] = (6, 9, 13)  # channels of every convolution, of the networks beside it
    epochs: int = 24
    between: int = 2  # epochs before each growth
    growths: int = 3
    fraction: float = 0.5  # more neurons at each growth
    new: int = 8  # brand-new neurons on offer in each width
    steps: int = 60  # of step one
    batch: int = 100
    lr: float = 0.1  # falls along a cosine to zero, and starts again after each growth
    decay: float = 5e-3
    momentum: float = 0.9
    images: int = 5000  # to learn from
    held_out: int = 1000

    @property
    def grows_after(self) -> tuple[int, ...]:
        """The epochs after which the network grows, counted from 1."""
        return tuple(self.between * (k + 1) for k in range(self.growths) if self.between * (k + 1) < self.epochs)


QUICK = {"fixed": (6,), "epochs": 3, "between": 1, "growths": 2, "steps": 10, "images": 600, "held_out": 200}


@dataclass(frozen=True)
class Data:
    """Images and labels to learn from, held out of those, and for the test."""

    train: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


@dataclass
class Record:
    """What happened: one row per epoch, per growth and per network."""

    epochs: list[Row] = field(default_factory=list)
    growths: list[Row] = field(default_factory=list)
    points: list[Row] = field(default_factory=list)


def run(out: str | Path = "runs/demo", seed: int = 0, epochs: int | None = None, quick: bool = False) -> Path:
    """Grow, compare, write the report; return its path."""
    setting = choose_setting(epochs, quick)
    began = time.perf_counter()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the networks are so small that a second thread costs more than it brings
    try:
        record = measure(load_data(setting), setting, seed)
    finally:
        torch.set_num_threads(threads)
    path = write_report(Path(out), record, setting, seed, time.perf_counter() - began)
    print(f"\n{summarise(record)}\n\nThe report: {path.resolve()}")
    return path


def choose_setting(epochs: int | None, quick: bool) -> Setting:
    setting = replace(Setting(), **QUICK) if quick else Setting()  # type: ignore[arg-type]
    if epochs is not None:
        setting = replace(setting, epochs=epochs)
    if not setting.grows_after:
        least = setting.between + 1
        raise FireflyError(
            f"--epochs {setting.epochs}: the first growth comes after {least - 1}; give at least {least}"
        )
    return setting


def load_data(setting: Setting) -> Data:
    images, labels, test_images, test_labels = digits.load()
    mean, std = images.mean(), images.std()
    images, test_images = (images - mean) / std, (test_images - mean) / std
    ours, theirs = slice(setting.images), slice(len(images) - setting.held_out, None)
    return Data((images[ours], labels[ours]), (images[theirs], labels[theirs]), (test_images, test_labels))


def make_network(widths: Sequence[int]) -> nn.Module:
    """Four 3 x 3 convolutions with batch norm on 14 x 14 pixels, two of them before a pooling, and a linear head."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = 1
    for number, width in enumerate(widths, start=1):
        layers[f"conv{number}"] = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        layers[f"norm{number}"] = nn.BatchNorm2d(width)
        layers[f"relu{number}"] = nn.ReLU()
        if number in (2, 4):
            layers[f"pool{number}"] = nn.MaxPool2d(2)
        channels = width
    layers.update(flatten=nn.Flatten(), head=nn.Linear(channels * 9, 10))
    return nn.Sequential(layers)


# ---- training --------------------------------------------------------------------------------------------------------


def measure(data: Data, setting: Setting, seed: int) -> Record:
    """The grown network first, then the fixed ones."""
    record = Record()
    grown = f"{setting.start[0]} channels at first"
    print(f"A network of {len(setting.start)} convolutions with {grown}, growing after epochs {setting.grows_after}")
    train(make_seeded(setting.start, seed), data, setting, seed, record, GROWN, grow=True)
    for width in setting.fixed:
        name = f"{width} channels"
        print(f"\nFixed width: {width} channels in every convolution")
        train(make_seeded([width] * len(setting.start), seed), data, setting, seed, record, name, grow=False)
    return record


def make_seeded(widths: Sequence[int], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make_network(widths)


def train(model: nn.Module, data: Data, setting: Setting, seed: int, record: Record, name: str, grow: bool) -> None:
    """Train one network, and let it grow if it may; the rounds of the learning rate are the same for all."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(
        model.parameters(), setting.lr, momentum=setting.momentum, weight_decay=setting.decay, nesterov=True
    )
    grower = firefly.Firefly(
        model,
        data.train[0][:2],
        neighborhood=[firefly.Split(), firefly.New(setting.new)],
        budget=firefly.Neurons(fraction=setting.fraction),
        schedule=firefly.Milestones(epoch - 1 for epoch in setting.grows_after),
        seed=seed,
        steps=setting.steps,
    )
    for epoch in range(setting.epochs):
        lrs = cosine(epoch, setting, len(data.train[0]))
        value = train_epoch(model, optimizer, draw_batches(data.train, setting.batch, generator), lrs)
        row = {"series": name, "epoch": epoch + 1, "loss": value, "parameters": count_parameters(model)}
        record.epochs.append({**row, "accuracy": accuracy(model, data.held_out)})
        show_epoch(record.epochs[-1], setting.epochs)
        last = epoch + 1 == setting.epochs
        due = grower.due(epoch)
        if last or (grow and due):
            record.points.append(make_point(model, data.test, GROWN if grow else FIXED, name, epoch + 1, record))
        if grow and due:
            growth = grower.grow(loss, draw_batches(data.train, setting.batch, generator), optimizer)
            record.growths.append({**growth.to_dict(), "epoch": epoch + 1})
            print(f"\n{growth}\n")


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, labels = batch
    return cross_entropy(model(images), labels)


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[tuple[Tensor, Tensor]], lrs: Iterator[float]
) -> float:
    """One pass over the batches; the mean loss."""
    model.train()
    total = 0.0
    for batch, lr in zip(batches, lrs):
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        total += value.item()
    return total / len(batches)
