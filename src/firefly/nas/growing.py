"""The growths of a search: cell after cell, split or new neurons in the operations of one of them (App. B.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import firefly
from firefly.anatomy.widths import Anatomy
from firefly.method import Method
from firefly.nas.plan import Plan
from firefly.nas.template import Template, list_operations
from firefly.stages.budget import Budget, Neurons
from firefly.stages.selection import Ballot, Chosen, select
from firefly.surgery.swap import exchanged
from firefly.training.resident import Batches, Resident, draw

TIMES = 4  # a batch that gains are measured on is so much larger than one of step one


class Looks(NamedTuple):
    """What a growth looks at: batches of step one, and those that gains and losses are measured on."""

    batches: Batches
    held: Batches


def draw_looks(data: Resident, plan: Plan, seed: int, epoch: int) -> Looks:
    """An epoch of the images for growing; those that gains are measured on are kept from step one, if so planned."""
    large = min(TIMES, max(1, len(data) // (2 * plan.batch)))
    table = draw(data, large * plan.batch, seed, epoch)  # (batches, 4 or 6, large * batch)
    count = max(1, min(plan.score_on, len(table) // 2))
    rest = table[count:] if plan.unseen and len(table) > 1 else table
    small = rest.unflatten(2, (large, plan.batch)).transpose(1, 2).flatten(0, 1)  # (large * batches, 4 or 6, batch)
    return Looks(Batches(data, small.contiguous()), Batches(data, table[:count]))


class CellGrower:
    """Grows one cell of a template at a time: what `fit` takes as its grower, and what a search is read from.

    `history` has an entry for every growth: the cell, and of every operation its width and the gain of its candidates.
    """

    def __init__(self, model: Template, plan: Plan, example: Tensor, seed: int = 0) -> None:
        self.model, self.plan, self.example, self.seed = model, plan, example, seed
        self.history: list[dict[str, Any]] = []
        self.anatomy: Anatomy | None = None

    def due(self, epoch: int, metric: float | None = None) -> bool:
        return len(self.history) < self.plan.growths and (epoch + 1) % self.plan.every == 0

    def grow(self, loss: Any, batches: Any, optimizer: Any = None, also: Iterable[Any] = ()) -> firefly.Growth:
        """One growth of the cell whose turn it is; `batches` are `Looks`."""
        turn, plan, looks = len(self.history), self.plan, batches
        cell = turn % len(plan.channels)
        anatomy = self.anatomy = self.anatomy or trace_plain(self.model, self.example)
        sizes = {path: one.width for path, place, one in list_operations(self.model) if place.cell == cell}
        gains: dict[str, float] = {}
        growth = firefly.grow(
            self.model,
            loss,
            looks.batches,
            held=looks.held,
            example=self.example,
            anatomy=anatomy,
            neighborhood=[firefly.Split(plan.split), firefly.New(plan.new[cell], epsilon=plan.fresh)],
            budget=make_budget(plan, cell, list(sizes.values())),
            optimizer=optimizer,
            widths=list(sizes),
            steps=max(1, round(plan.step_one * len(looks.batches))),
            lr=plan.rate,
            evaluate_on=len(looks.held),
            seed=1000 * self.seed + turn,
            also=also,
            method=Method(select=partial(choose, worth=plan.worth, gains=gains)),
        )
        self.anatomy = anatomy.resized({name: after for name, (_, after) in growth.widths.items()})
        self.history.append(self.tell(turn, cell, growth, gains))
        return growth

    def tell(self, turn: int, cell: int, growth: firefly.Growth, gains: dict[str, float]) -> dict[str, Any]:
        """What is remembered of a growth, as JSON has it."""
        kinds = [kind for added in growth.added.values() for kind in added.items()]
        return {
            "turn": turn,
            "cell": cell,
            "widths": {path: one.width for path, _, one in list_operations(self.model)},
            "gains": gains,
            "split": sum(number for kind, number in kinds if kind == "split"),
            "new": sum(number for kind, number in kinds if kind == "new"),
            "losses": [growth.loss_before, growth.loss_overgrown, growth.loss_after],
            "shortened": growth.shortened,
            "parameters": list(growth.parameters),
            "seconds": {key: round(value, 3) for key, value in growth.seconds.items()},
            "notes": list(growth.notes),
        }

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.history = list(state["history"])
        self.anatomy = None


def trace_plain(model: Template, example: Tensor) -> Anatomy:
    """The widths of the template, whichever way it runs otherwise."""
    with exchanged([(model, "dense", False)]):
        return firefly.trace(model, example)


def make_budget(plan: Plan, cell: int, sizes: Sequence[int]) -> Budget:
    """25 % of the candidates, or of the neurons there are; of sleeping operations there are only candidates."""
    present = sum(sizes)
    candidates = present + plan.new[cell] * len(sizes)
    of = present if plan.share_of == "neurons" and present else candidates
    return Neurons(max(1, round(plan.keep * of)))


def choose(ballot: Ballot, worth: str, gains: dict[str, float]) -> Chosen:
    """The best candidates by what they are worth; `gains` is told that of every operation."""
    totals = {name: float(gain.clamp(min=0).sum()) for name, gain in ballot.gains.items()}
    gains.update({name: float(f"{total:.5g}") for name, total in totals.items()})
    return select(replace(ballot, keys={name: weigh(ballot, name, worth, totals) for name in ballot.keys}))


def weigh(ballot: Ballot, name: str, worth: str, totals: dict[str, float]) -> Tensor:
    """The rank of the candidates of an operation."""
    key = ballot.keys[name]
    if worth == "neuron":
        return key
    return torch.full_like(key, totals[name]) + 1e-3 * key  # all of it together, its best candidates first
