"""η_t: how much a growth may add, and the greedy choice under it (eq. 5).

A budget limits one or more costs. Candidates are taken in the order of their gain per unit of cost (for `Neurons`
every candidate costs the same, so that is the order of the gains), skipping those that no longer fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from firefly.anatomy import Anatomy, Runs, length
from firefly.errors import FireflyError
from firefly.tensors import Run

Sizes = Mapping[str, int]


class Budget:
    """What a growth may cost. Join two with `&`: both hold."""

    def limits(self, anatomy: Anatomy, widths: list[str]) -> list[Limit]:
        raise NotImplementedError

    def __and__(self, other: Budget) -> Budget:
        return Both(self, other)


@dataclass(frozen=True)
class Limit:
    """So much of a cost that is a sum of products of axes, e.g. rows times columns over all weights."""

    what: str
    allowed: float
    terms: tuple[tuple[Runs, ...], ...]
    factor: float = 1.0

    def of(self, width: str) -> Limit:
        """Only the terms that this width has a part in."""
        mine = (dims for dims in self.terms if any(run.width == width for runs in dims for run in runs))
        return Limit(self.what, self.allowed, tuple(mine), self.factor)

    def cost(self, sizes: Sizes) -> float:
        return self.factor * sum(math.prod(length(runs, sizes) for runs in dims) for dims in self.terms)


@dataclass(frozen=True)
class Both(Budget):
    first: Budget
    second: Budget

    def limits(self, anatomy: Anatomy, widths: list[str]) -> list[Limit]:
        return self.first.limits(anatomy, widths) + self.second.limits(anatomy, widths)


@dataclass(frozen=True)
class _Amount(Budget):
    """So many more, as a number or as a `fraction` of what is there."""

    count: float | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        if (self.count is None) == (self.fraction is None):
            raise FireflyError(f"{name} needs either a number or fraction=, e.g. {name}(64) or {name}(fraction=0.3)")
        given = self.count if self.count is not None else self.fraction
        if not isinstance(given, (int, float)) or not math.isfinite(given) or given <= 0:
            raise FireflyError(f"{name}: the budget is {given!r}, so nothing could grow; it must be above 0")

    def allowed(self, present: float) -> float:
        return self.count if self.count is not None else (self.fraction or 0.0) * present


class Neurons(_Amount):
    """At most so many more neurons, over all widths that may grow."""

    def limits(self, anatomy: Anatomy, widths: list[str]) -> list[Limit]:
        present = sum(anatomy[name].size for name in widths)
        allowed = max(1, int(self.allowed(present) + 1e-9))
        return [Limit("neurons", allowed, tuple(((Run(name, 1),),) for name in widths))]


class Parameters(_Amount):
    """At most so many more parameters, counting what a neuron adds on both of its sides."""

    def limits(self, anatomy: Anatomy, widths: list[str]) -> list[Limit]:
        terms = tuple(layout.dims for layout in anatomy.layouts.values() if layout.parameter)
        return [Limit("parameters", self.allowed(anatomy.parameters()), terms)]


class Flops(_Amount):
    """At most so many more floating-point operations in the forward pass of one example."""

    def limits(self, anatomy: Anatomy, widths: list[str]) -> list[Limit]:
        return [Limit("flops", self.allowed(anatomy.flops()), anatomy.costs, 2 / anatomy.examples)]


@dataclass(frozen=True)
class Chosen:
    """The candidates that a growth takes: their compact numbers per width, and why there are no more."""

    split: Mapping[str, Tensor]
    new: Mapping[str, Tensor]
    predicted: float
    spent: Mapping[str, tuple[float, float]]  # what: (spent, allowed)
    note: str | None = None

    def __len__(self) -> int:
        return sum(len(numbers) for kind in (self.split, self.new) for numbers in kind.values())


def select(
    anatomy: Anatomy,
    gains: Mapping[str, Tensor],
    keys: Mapping[str, Tensor],
    budget: Budget,
    newest: Mapping[str, int],
    candidates: Mapping[str, Tensor],
    eligible: str = "gain",
) -> Chosen:
    """Take the best candidates until the budget is spent.

    gains: D_i per width in compact numbering; keys: what to rank by; newest: m' per width;
    candidates: who stands for election; eligible: "gain" for those with D_i > 0 only, "all" for the paper's |s_i|.
    """
    sizes = dict(anatomy.sizes())
    gains, candidates = ({n: value.cpu() for n, value in given.items()} for given in (gains, candidates))
    limits = budget.limits(anatomy, list(gains))
    parts = {name: [limit.of(name) for limit in limits] for name in gains}

    def price(name: str) -> list[float]:
        more = {**sizes, name: sizes[name] + 1}
        return [part.cost(more) - part.cost(sizes) for part in parts[name]]

    load = {name: sum(cost / limit.allowed for cost, limit in zip(price(name), limits)) for name in gains}
    ranked = sorted(
        ((key / max(load[name], 1e-30), name, i) for name in gains for i, key in enumerate(keys[name].tolist())),
        key=lambda row: -row[0],
    )
    allowed = {n: (mask if eligible == "all" else mask & (gains[n] > 0)).tolist() for n, mask in candidates.items()}
    pool = [(name, i) for _, name, i in ranked if allowed[name][i]]
    taken: dict[str, list[int]] = {name: [] for name in gains}
    spent, full = [0.0] * len(limits), set()
    for name, i in pool:
        if name in full:
            continue
        after = [s + cost for s, cost in zip(spent, price(name))]
        if any(cost > limit.allowed + 1e-9 for cost, limit in zip(after, limits)):
            full.add(name)
            continue
        taken[name].append(i)
        sizes[name] += 1
        spent = after
    room = any(
        all(s + cost <= limit.allowed + 1e-9 for s, cost, limit in zip(spent, price(name), limits)) for name in gains
    )
    note = f"only {len(pool)} candidates lower the loss, so the budget is not used up" if room else None
    if pool and not any(taken.values()):
        note = "the budget is smaller than any one neuron"
    numbers = {name: torch.tensor(sorted(picks), dtype=torch.long) for name, picks in taken.items() if picks}
    size = {name: len(gains[name]) - newest[name] for name in gains}
    return Chosen(
        {name: picks[picks < size[name]] for name, picks in numbers.items()},
        {name: picks[picks >= size[name]] - size[name] for name, picks in numbers.items()},
        sum(gains[name][picks].sum().item() for name, picks in numbers.items()),
        {limit.what: (cost, limit.allowed) for limit, cost in zip(limits, spent)},
        note,
    )
