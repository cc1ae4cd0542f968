"""Whom to teach the tasks, what and where: what all methods of the experiments of continual learning share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from firefly.continual import metrics
from firefly.continual.blueprint import Blueprint, list_tensors, read_blueprint
from firefly.experiments.continual.course import Course, Part, find_network, fit_widths
from firefly.experiments.rows import count

Scores = dict[str, float]
Step = tuple[Scores, int, dict[str, Any]]  # accuracies of the tasks seen, parameters of all, whatever else to keep
Stream = Iterator[Step]


@dataclass(frozen=True, eq=False)
class Class:
    """Whom to teach, what and where."""

    course: Course
    parts: list[Part]
    device: torch.device
    folder: Path
    seed: int
    size: int = 0  # parameters that Firefly took in the end, for methods of equal size
    goals: Mapping[int, float] = field(default_factory=dict)  # held-out accuracy of networks of their own, if measured

    def make(self, classes: int, widths: Any) -> nn.Module:
        return find_network(self.course)[0](classes, int(widths) if str(widths).isdigit() else widths)

    def build(self, widths: Any, number: int) -> nn.Module:
        """A fresh network for one task."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1000 * self.seed + number)
            return self.make(self.course.classes, widths)

    def score(self, model: nn.Module, part: Part) -> float:
        return metrics.measure_one(model, part.test, self.device)

    def fit_widths(self, parameters: float) -> int | list[int]:
        """As many channels as so many parameters allow, the same in every layer or, in multiples, more in the first."""
        make, step = partial(self.make, self.course.classes), self.course.multiple
        widths = fit_widths(make, parameters)
        if step == 1 or widths < step:
            return widths
        sizes = [widths // step * step] * sum(isinstance(one, nn.Conv2d) for one in make(1).modules())
        for layer in range(len(sizes)):
            wider = [size + step * (number == layer) for number, size in enumerate(sizes)]
            sizes = wider if count(make(wider)) <= parameters else sizes
        return sizes

    def share(self, blueprint: Blueprint, model: nn.Module) -> int:
        """What one network takes with heads and norms for all tasks."""
        names = set(blueprint.private)
        private = sum(p.numel() for name, p in model.named_parameters() if name in names)
        return count(model) + (len(self.parts) - 1) * private

    def round_up(self, widths: int) -> int:
        """The next multiple that trains fast."""
        return widths + -widths % self.course.multiple

    def fit_shared(self) -> int:
        """The channels of one network for all tasks that is as large as Firefly's, or a little larger."""
        example = find_network(self.course)[1]
        blueprint = read_blueprint(lambda classes: self.make(classes, 2), example)
        widths = 1
        while self.share(blueprint, self.make(self.course.classes, widths + 1)) <= self.size:
            widths += 1
        return self.round_up(widths)


def count_epochs(room: Class) -> int:
    """Of one task: as many as Firefly trains a later one."""
    course = room.course
    mask = course.mask_epochs if course.pick == "mask" else 0
    return mask + course.first_epochs + course.growths * course.epochs


def how_to_fit(room: Class, part: Part, **how: Any) -> dict[str, Any]:
    """Where, how long and with which recipe."""
    recipe = room.course.recipe(room.device, count_epochs(room), **how)
    folder = room.folder / part.name.replace(" ", "-")
    return {"recipe": recipe, "test": part.valid, "checkpoint": folder, "progress": False}


@torch.no_grad()
def begin_as(model: nn.Module, other: nn.Module, names: set[str] | None = None) -> None:
    """Give the model the other's tensors, all but the head; or only those of these names."""
    theirs = list_tensors(other)
    for name, tensor in list_tensors(model).items():
        if name in names if names is not None else not name.startswith("head."):
            tensor.copy_(theirs[name])
