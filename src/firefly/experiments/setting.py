"""What an experiment of growing networks is: its setting, its data and networks, and the place where it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from firefly.experiments.rows import count
from firefly.vision.data import Images


@dataclass(frozen=True)
class Setting:
    """What a run is; every row of the results carries it."""

    sizes: tuple[float, ...]  # after each growth, as shares of the full network's parameters
    epochs: int = 20  # in every round, the learning rate falling along a cosine
    long: int = 120  # the further epochs of a network that the table reports
    batch: int = 128
    lr: float = 0.1
    long_lr: float | None = None  # of the further epochs, and of networks that never grow; None for the same
    weight_decay: float = 5e-4
    steps: int = 195  # of step one, with batches of twice the size: one epoch
    rate: float = 0.02  # of step one
    evaluate_on: int = 8  # such batches for the scores of a growth
    unseen: bool = False  # whether these are others than those of step one
    split: float = 1.0  # ε of a split
    new: float = 0.03  # ε of a new neuron
    candidates: int = 50  # m', new neurons per width
    budget: str = "parameters"  # up to the next size; "both": FLOPs by the same factor; "neurons", "flops": by `more`
    more: float = 0.3
    power: float = 1.0  # candidates are ranked by gain / cost^power
    multiple: int = 1  # of which the grown widths are multiples: 8 trains faster on a GPU
    rank: str = "decrease"
    carry: bool = True  # the optimiser's momentum into the next round
    child: int = 2  # epochs that NASH trains each of its 8 children
    images: int | None = None  # only so many training images
    held_out: int = 0  # training images to measure on, instead of the test set


BUDGETS = ("parameters", "both", "neurons", "flops")
START = ("epochs", "batch", "lr", "weight_decay", "images", "held_out")  # what the start network depends on


@dataclass(frozen=True)
class Place:
    """Where an experiment runs, and until when."""

    device: torch.device
    folder: Path  # of the trainings under way
    results: Path
    deadline: float = float("inf")  # time.monotonic() after which no step is begun
    say: Callable[[str], None] = print
    shared: bool = False  # with other runs on the same machine: seconds say little


@dataclass(frozen=True)
class World:
    """What all lines of an experiment share."""

    experiment: str
    make: Callable[[Any], nn.Module]  # widths -> network
    start: int  # the widths of the start network
    train: Images
    test: Images
    place: Place
    report: tuple[float, ...] = ()  # the sizes that the table reports, where networks are trained on
    augment: bool | str = True  # crop and mirror; "crop" never mirrors

    @cached_property
    def full(self) -> int:
        return count(self.make("full"))
