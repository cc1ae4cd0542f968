"""How each method of the comparison makes a network wider and deeper by one step (App. B.2, Table 3).

Both get as many parameters. Firefly grows new layers and existing ones, in one growth, where its gains are largest.
NASH inserts a layer at a random place of every block and splits random neurons; the best of 8 such networks stays.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import firefly
from firefly import baselines
from firefly.anatomy import Anatomy
from firefly.baselines.nash import draw_layers
from firefly.budget import Budget
from firefly.experiments.deeper_line import DeepLine
from firefly.experiments.growers import grow
from firefly.experiments.lineage import Grown
from firefly.residual import NAME, find_layers
from firefly.training import evaluate, fit
from firefly.vision.data import hold_out


def put_layers(line: DeepLine, model: nn.Module, step: int) -> tuple[Any, Anatomy]:
    """The dormant layers, before the first growth; also an example and the widths."""
    example = line.batches(step)[0][0][:8]
    if not find_layers(model):
        firefly.deepen(model, example, count=line.setting.dormant)
    return example, line.trace(model, example)


def grow_deeper(line: DeepLine, model: nn.Module, optimizer: torch.optim.Optimizer, budget: Budget, step: int) -> Grown:
    """Firefly: new layers and existing ones compete for the budget."""
    how = line.setting
    _, anatomy = put_layers(line, model, step)
    names = [*list_awake(anatomy), *offer(anatomy, how.offer)]
    return grow(line, model, optimizer, budget & firefly.Layers(how.layers), step, widths=names)


def list_awake(anatomy: Anatomy) -> list[str]:
    return [width.name for width in anatomy.growable() if not width.dormant]


def offer(anatomy: Anatomy, count: int) -> list[str]:
    """The dormant layers that stand for election: so many of every block, evenly spread, or all for 0.

    Layers in a row can do each other's work, and share what a place is worth.
    """
    places: dict[str, list[str]] = {}
    for width in anatomy.growable():
        if width.dormant:
            places.setdefault(width.name.rpartition(f".{NAME}.")[0], []).append(width.name)
    if not count:
        return [name for names in places.values() for name in names]
    return [name for names in places.values() for name in spread(names, count)]


def spread(names: list[str], count: int) -> list[str]:
    """So many of the names, evenly spread and in order."""
    many = min(count, len(names))
    return [names[(2 * k + 1) * len(names) // (2 * many)] for k in range(many)]


def grow_nash(line: DeepLine, model: nn.Module, optimizer: torch.optim.Optimizer, budget: Budget, step: int) -> Grown:
    """A few children, each wider and with one more layer in every block; the best on training images held out."""
    how, world = line.setting, line.world
    example, anatomy = put_layers(line, model, step)
    train, held = hold_out(world.train, min(5000, len(world.train) // 5), seed=line.seed)

    def tune(child: nn.Module) -> None:
        options: dict[str, Any] = {"augment": world.augment, "device": world.device, "progress": False, "seed": step}
        fit(child, train, how.child, batch=how.batch, lr=0.05, **options)

    growth = baselines.nash(
        model,
        line.loss,
        line.batches(step),
        example=example,
        anatomy=anatomy,
        budget=line.budget(step, anatomy.parameters(inserted(anatomy, how.hidden))),
        insert=how.hidden,
        optimizer=optimizer,
        neighbours=how.neighbours,
        tune=tune,
        judge=lambda child: 1 - evaluate(child, held).accuracy,
        seed=1000 * line.seed + step,
    )
    return Grown(growth, epochs=float(how.neighbours * how.child))


def inserted(anatomy: Anatomy, neurons: int) -> dict[str, int]:
    """The widths' sizes once every block has a new layer; which one of its dormant ones does not matter here."""
    return {**anatomy.sizes(), **dict.fromkeys(draw_layers(anatomy, 0), neurons)}


METHODS: dict[str, Any] = {"firefly": grow_deeper, "nash": grow_nash}
