"""How each method of the comparison makes a network wider and deeper by one step (App. B.2, Table 3).

Both get as many parameters. Firefly grows new layers and existing ones, in one growth, where its gains are largest.
NASH inserts a layer at a random place of every block and splits random neurons; the best of 8 such networks stays.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import firefly
from firefly.anatomy.widths import Anatomy
from firefly.baselines.nash import draw_layers
from firefly.experiments import growers
from firefly.experiments.deeper.line import DeepLine
from firefly.experiments.lineage import Grown
from firefly.stages.budget import Budget
from firefly.surgery.residual import find_layers


def put_layers(line: DeepLine, model: nn.Module, step: int) -> Anatomy:
    """The dormant layers, before the first growth; the widths with them."""
    if not find_layers(model):
        firefly.deepen(model, line.example(step), count=line.setting.dormant)
    return line.trace(model, step)


def grow_deeper(line: DeepLine, model: nn.Module, optimizer: torch.optim.Optimizer, budget: Budget, step: int) -> Grown:
    """Firefly: new layers and existing ones compete for the budget."""
    how, anatomy = line.setting, put_layers(line, model, step)
    names = [*list_awake(anatomy), *offer(anatomy, how.offer)]
    return growers.grow(line, model, optimizer, budget & firefly.Layers(how.layers), step, widths=names)


def list_awake(anatomy: Anatomy) -> list[str]:
    return [width.name for width in anatomy.growable() if not width.dormant]


def offer(anatomy: Anatomy, count: int) -> list[str]:
    """The dormant layers that stand for election: so many of every block, evenly spread, or all for 0.

    Layers in a row can do each other's work, and share what a place is worth.
    """
    return [name for names in anatomy.dormant_layers().values() for name in pick_evenly(names, count or len(names))]


def pick_evenly(names: list[str], count: int) -> list[str]:
    """So many of the names, evenly spread and in order."""
    many = min(count, len(names))
    return [names[(2 * k + 1) * len(names) // (2 * many)] for k in range(many)]


def grow_nash(line: DeepLine, model: nn.Module, optimizer: torch.optim.Optimizer, budget: Budget, step: int) -> Grown:
    """A few children, each with one more layer in every block, and wider by what the layers leave of the budget."""
    how, anatomy = line.setting, put_layers(line, model, step)
    rest = line.budget(step, anatomy.parameters(inserted(anatomy, how.hidden)))
    return growers.grow_nash(line, model, optimizer, rest, step, how.neighbours, how.hidden)


def inserted(anatomy: Anatomy, neurons: int) -> dict[str, int]:
    """The widths' sizes once every block has a new layer; which one of its dormant ones does not matter here."""
    return {**anatomy.sizes(), **dict.fromkeys(draw_layers(anatomy, 0), neurons)}


METHODS: dict[str, Any] = {"firefly": grow_deeper, "nash": grow_nash}
