"""How each method of the comparison grows a network by one step (Sec. 3, App. B.2): one short function each.

All get the same network, data, budget and optimiser; what they cost beside is told in `Grown`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

import firefly
from firefly import baselines
from firefly.experiments.lineage import Grow, Grown, Line
from firefly.method import Method
from firefly.neighborhood.kinds import Kind
from firefly.stages.budget import Budget
from firefly.stages.selection import select
from firefly.training import captured, evaluate, fit
from firefly.vision.data import hold_out


def grow(
    line: Line,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    budget: Budget,
    step: int,
    kinds: Sequence[str] = ("split", "new"),
    method: Method | None = None,
    widths: list[str] | None = None,
) -> Grown:
    """One call of `firefly.grow`, with a method of its own or with Firefly's."""
    growth = firefly.grow(
        model,
        line.loss,
        line.batches(step),
        neighborhood=list_kinds(line, kinds),
        budget=budget,
        optimizer=optimizer,
        widths=widths,
        **options(line, method or Method()),
        **share(line, model, step),
    )
    return Grown(growth)


def options(line: Line, method: Method) -> dict[str, Any]:
    """How a method steps, scores and ranks, as the setting has it."""
    how = line.setting
    own = {"steps": how.steps, "lr": how.rate, "evaluate_on": how.evaluate_on, "rank": how.rank}
    return {**own, "method": captured(rank_by(how.power, method))}


def rank_by(power: float, method: Method) -> Method:
    """The method with gains counted per cost^power, if it ranks by gains at all."""
    ranks = select in (method.select, getattr(method.select, "func", None))
    return replace(method, select=partial(method.select, power=power)) if ranks else method


def share(line: Line, model: nn.Module, step: int) -> dict[str, Any]:
    """What every way to grow is told in the same way."""
    return {"example": line.example(step), "anatomy": line.trace(model, step), "seed": 1000 * line.seed + step}


def list_kinds(line: Line, kinds: Sequence[str]) -> list[Kind]:
    how = line.setting
    known: dict[str, Kind] = {
        "split": firefly.Split(how.split),
        "new": firefly.New(how.candidates, epsilon=how.new),
    }
    return [known[kind] for kind in kinds]


def grow_deeper(line: Line, model: nn.Module, optimizer: torch.optim.Optimizer, budget: Budget, step: int) -> Grown:
    """Wider and deeper under one budget: before the first growth every place gets a dormant layer."""
    if step == 1:
        firefly.deepen(model, line.example(step))
    return grow(line, model, optimizer, budget, step)


def grow_nash(
    line: Line,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    budget: Budget,
    step: int,
    neighbours: int = 8,
    insert: int = 0,
) -> Grown:
    """A few children, each trained for a short cosine cycle; the best by its error on training images held out."""
    contest, trained = train_children(line, step)
    growth = baselines.nash(
        model,
        line.loss,
        line.batches(step),
        budget=budget,
        optimizer=optimizer,
        neighbours=neighbours,
        insert=insert,
        **contest,
        **share(line, model, step),
    )
    return Grown(growth, epochs=float(sum(trained)))


def grow_race(line: Line, model: nn.Module, optimizer: torch.optim.Optimizer, budget: Budget, step: int) -> Grown:
    """By splits, by new neurons or by both: a child of each is trained for a short cosine cycle, and the best stays."""
    contest, trained = train_children(line, step)
    growth = baselines.race(
        model,
        line.loss,
        line.batches(step),
        neighborhoods=[list_kinds(line, kinds) for kinds in (["split"], ["new"], ["split", "new"])],
        budget=budget,
        optimizer=optimizer,
        **contest,
        **options(line, Method()),
        **share(line, model, step),
    )
    return Grown(growth, epochs=float(sum(trained)))


def train_children(line: Line, step: int) -> tuple[dict[str, Any], list[int]]:
    """How children are trained, on a part of the training images, and judged, by the rest; and their epochs."""
    how, world = line.setting, line.world
    train, held = hold_out(world.train, min(5000, len(world.train) // 5), seed=line.seed)
    common: dict[str, Any] = {"augment": world.augment, "device": world.place.device, "progress": False, "seed": step}
    trained: list[int] = []

    def tune(child: nn.Module) -> None:
        trained.append(len(fit(child, train, how.child, batch=how.batch, lr=0.05, **common)))

    return {"tune": tune, "judge": lambda child: 1 - evaluate(child, held).accuracy}, trained


def by(method: Method, *kinds: str) -> Grow:
    return partial(grow, kinds=kinds, method=method)


METHODS: dict[str, Grow] = {
    "firefly": grow,
    "firefly-split": partial(grow, kinds=("split",)),
    "firefly-new": partial(grow, kinds=("new",)),
    "firefly-deeper": grow_deeper,
    "splitting": by(baselines.splitting(always=True), "split"),
    "fast-splitting": by(baselines.fast_splitting(always=True), "split"),
    "net2net": by(baselines.net2net(), "split"),
    "nash": grow_nash,
    "race": grow_race,
    "uniform": by(baselines.uniform(), "split"),
    "random": by(baselines.random_growth(), "split", "new"),
    "gradmax": by(baselines.gradmax(), "new"),
}
