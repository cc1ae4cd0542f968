"""`firefly demo`: a thin convolutional network learns digits and grows on the way, beside networks of fixed width.

Algorithm 1 of the paper on a small scale: train, grow, train, grow, … After every growth a copy stays as it is and
learns on to the end, so each size has learnt for the same number of epochs, as have the networks of fixed width.
The settings were chosen on images held out of the training set; the test images serve for the reported figures alone.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import firefly
from firefly import report
from firefly.errors import FireflyError
from firefly.experiments.demo import page
from firefly.experiments.demo.page import FIXED, GROWN
from firefly.experiments.rows import Row, count, count_flops
from firefly.progress import Line
from firefly.training import evaluate
from firefly.vision import digits

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Demo:
    """What a run is made with."""

    start: int = 2  # channels of each convolution before the first growth
    fixed: tuple[int, ...] = (4, 6, 9, 17)  # channels of each convolution in the networks beside it
    epochs: int = 24  # that every network learns in all
    between: int = 3  # epochs before each growth
    growths: int = 3
    budget: float = 0.8  # a growth may add this share of the parameters
    new: int = 24  # brand-new neurons on offer in every width
    steps: int = 100  # of step one
    batch: int = 100
    lr: float = 0.1  # falls along a cosine to zero until the next growth, or the end
    decay: float = 5e-3
    images: int = 5000  # to learn from
    held_out: int = 1000


QUICK = {"fixed": (4,), "epochs": 3, "between": 1, "growths": 2, "new": 4, "steps": 10, "images": 500, "held_out": 200}


@dataclass(frozen=True)
class Data:
    """Images and labels: to learn from, held out of those, and for the test."""

    train: Batch
    held_out: Batch
    test: Batch


@dataclass
class Learner:
    """A network on its way: what it is called, its optimiser and the epochs it has learnt for."""

    name: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    seed: int
    epoch: int = 0


@dataclass
class Record:
    """What happened: a row per epoch, per growth and per finished network."""

    epochs: list[Row] = field(default_factory=list)
    growths: list[Row] = field(default_factory=list)
    points: list[Row] = field(default_factory=list)


def run(out: str | Path = "runs/demo", seed: int = 0, epochs: int | None = None, quick: bool = False) -> Path:
    """Grow, compare, write the report; return its path."""
    setting = choose_setting(epochs, quick)
    if not 0 <= seed < 2**32:
        raise FireflyError(f"--seed {seed}: give a whole number from 0 to {2**32 - 1}")
    folder = report.prepare(out)  # before a minute of work, not after it
    began, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)  # for networks this small a second thread costs more than it brings
    try:
        record = measure(load_data(setting), setting, seed)
    finally:
        torch.set_num_threads(threads)
    path = page.write_report(folder, record, setting, seed, time.perf_counter() - began)
    print(f"\n{page.make_table(record)}\n\nThe report: {path.resolve()}")
    return path


def choose_setting(epochs: int | None, quick: bool) -> Demo:
    setting = replace(Demo(), **QUICK) if quick else Demo()  # type: ignore[arg-type]
    least = setting.between * setting.growths + 1
    if epochs is not None and epochs < least:
        raise FireflyError(f"--epochs {epochs}: {setting.growths} growths, one every {setting.between}, need {least}")
    return setting if epochs is None else replace(setting, epochs=epochs)


def load_data(setting: Demo) -> Data:
    images, labels, test_images, test_labels = digits.load()
    mean, std = images.mean(), images.std()
    images, test_images = (images - mean) / std, (test_images - mean) / std
    ours, theirs = slice(setting.images), slice(len(images) - setting.held_out, None)
    return Data((images[ours], labels[ours]), (images[theirs], labels[theirs]), (test_images, test_labels))


def make_network(width: int) -> nn.Module:
    """Three 3 x 3 convolutions with batch norm, a pooling after the first, and a head that reads all 7 x 7 places."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, channels in enumerate((1, width, width), start=1):
        layers[f"conv{number}"] = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        layers[f"norm{number}"] = nn.BatchNorm2d(width)
        layers[f"relu{number}"] = nn.ReLU()
        if number == 1:
            layers["pool"] = nn.MaxPool2d(2)  # 14 x 14 pixels to 7 x 7
    layers.update(flatten=nn.Flatten(), head=nn.Linear(width * 7 * 7, 10))
    return nn.Sequential(layers)


# ---- learning --------------------------------------------------------------------------------------------------------


def measure(data: Data, setting: Demo, seed: int) -> Record:
    """The growing network and a copy of each of its sizes, then the networks of fixed width."""
    record = Record()
    print(
        f"A network with {setting.start} channels in each of its three convolutions learns {setting.images:,} digits."
    )
    grow_and_train(start(GROWN, setting.start, setting, seed), data, setting, record)
    for width in setting.fixed:
        print(f"\nFor comparison: {width} channels in each convolution, from beginning to end")
        learner = start(f"{width} channels", width, setting, seed)
        train(learner, setting.epochs, data, setting, record)
        add_point(learner, FIXED, learner.name, data, record)
    return record


def start(name: str, width: int, setting: Demo, seed: int) -> Learner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_network(width)
    how: dict[str, Any] = {"momentum": 0.9, "nesterov": True, "weight_decay": setting.decay}
    return Learner(name, model, torch.optim.SGD(model.parameters(), setting.lr, **how), seed)


def grow_and_train(trunk: Learner, data: Data, setting: Demo, record: Record) -> None:
    """Train and grow in turn. A copy of each size learns on to the end; the trunk itself is the last size."""
    grower = firefly.Firefly(
        trunk.model,
        data.train[0][:2],
        neighborhood=[firefly.Split(), firefly.New(setting.new)],
        budget=firefly.Parameters(fraction=setting.budget),
        seed=trunk.seed,
        steps=setting.steps,
    )
    for number in range(setting.growths):
        twin = replace(trunk, name=name_size(number), **copy_together(trunk))
        print(f"\nA copy learns on to the end with {count(twin.model):,} parameters:")
        train(twin, setting.epochs, data, setting, record)
        add_point(twin, GROWN, twin.name, data, record)
        if number == 0:  # so far it is a network of fixed width, too
            record.points.append({**record.points[-1], "series": FIXED, "label": f"{setting.start} channels"})
        print("\nThe network itself learns until it grows:")
        train(trunk, trunk.epoch + setting.between, data, setting, record)
        growth = grower.grow(loss, draw_batches(data.train, setting, trunk), trunk.optimizer)
        record.growths.append({**growth.to_dict(), "epoch": trunk.epoch})
        print(f"\nGrowth {number + 1}: {growth}")
    print("\nFully grown, it learns on to the end:")
    train(trunk, setting.epochs, data, setting, record)
    add_point(trunk, GROWN, name_size(setting.growths), data, record)


def copy_together(learner: Learner) -> dict[str, Any]:
    """A model and its optimiser in one go, so that the copies belong to each other."""
    model, optimizer = copy.deepcopy((learner.model, learner.optimizer))
    return {"model": model, "optimizer": optimizer}


def name_size(growths: int) -> str:
    return "start" if growths == 0 else f"{growths} growth{'s' if growths > 1 else ''}"


def train(learner: Learner, until: int, data: Data, setting: Demo, record: Record) -> None:
    """Train to the end of that epoch, the learning rate falling along a cosine all the way."""
    first, last, line = learner.epoch, until, Line(stream=sys.stdout)
    while learner.epoch < last:
        batches = draw_batches(data.train, setting, learner)
        done = [(learner.epoch - first + k / len(batches)) / (last - first) for k in range(len(batches))]
        value = train_epoch(learner, batches, [setting.lr * (1 + math.cos(math.pi * share)) / 2 for share in done])
        learner.epoch += 1
        row = {"network": learner.name, "epoch": learner.epoch, "loss": value}
        row |= {
            "held_out_accuracy": evaluate(learner.model, data.held_out).accuracy,
            "parameters": count(learner.model),
        }
        record.epochs.append(row)
        show_epoch(line, row, setting.epochs, last)


def draw_batches(data: Batch, setting: Demo, learner: Learner) -> list[Batch]:
    """All images once, in an order of this epoch, each batch moved by up to a pixel."""
    images, labels = data
    generator = torch.Generator().manual_seed(1000 * learner.seed + learner.epoch)
    batches = []
    for chosen in torch.randperm(len(images), generator=generator).split(setting.batch):
        by = torch.randint(-1, 2, (2,), generator=generator).tolist()
        batches.append((images[chosen].roll(by, (2, 3)), labels[chosen]))
    return batches


def train_epoch(learner: Learner, batches: list[Batch], lrs: list[float]) -> float:
    """One pass over the batches; the mean loss."""
    learner.model.train()
    total = 0.0
    for batch, lr in zip(batches, lrs):
        for group in learner.optimizer.param_groups:
            group["lr"] = lr
        learner.optimizer.zero_grad()
        value = loss(learner.model, batch)
        value.backward()
        learner.optimizer.step()
        total += value.item()
    return total / len(batches)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    images, labels = batch
    return cross_entropy(model(images), labels)


def add_point(learner: Learner, series: str, label: str, data: Data, record: Record) -> None:
    """A finished network on the test images, with the standard error that their number brings."""
    right = evaluate(learner.model, data.test).accuracy
    error = math.sqrt(right * (1 - right) / len(data.test[1]))
    point = {"series": series, "label": label, "parameters": count(learner.model), "test_accuracy": right}
    point["flops"] = count_flops(learner.model, data.test[0][0])
    widths = [module.out_channels for module in learner.model.modules() if isinstance(module, nn.Conv2d)]
    record.points.append(
        {**point, "error": error, "widths": widths, "held_out_accuracy": record.epochs[-1]["held_out_accuracy"]}
    )


def show_epoch(line: Line, row: Row, epochs: int, last: int) -> None:
    text = f"epoch {row['epoch']:>2}/{epochs}  loss {row['loss']:.3f}  held-out {row['held_out_accuracy']:.1%}"
    line(f"{text}  {row['parameters']:,} parameters", last=row["epoch"] == last)
