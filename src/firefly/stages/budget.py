"""η_t: how much a growth may add, and the greedy choice under it (eq. 5).

A budget limits one or more costs. Candidates are taken in the order of their gain per unit of cost (for `Neurons`
every candidate costs the same, so that is the order of the gains), skipping those that no longer fit. A dormant layer
with fewer than two neurons gives them back, and they are spent on the next best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from firefly.anatomy.widths import Anatomy, Runs, length
from firefly.errors import FireflyError
from firefly.tensors import Run

Sizes = Mapping[str, int]
LEAST = 2  # neurons that a new layer needs, or it gives them up (App. B.2)


class Budget:
    """What a growth may cost. Join two with `&`: both hold."""

    multiple: ClassVar[int] = 1  # what the grown widths are multiples of

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
    once: bool = False  # a term counts as 1 however large it is: a layer is there or not

    def of(self, width: str) -> Limit:
        """Only the terms that this width has a part in."""
        mine = (dims for dims in self.terms if any(run.width == width for runs in dims for run in runs))
        return replace(self, terms=tuple(mine))

    def cost(self, sizes: Sizes) -> float:
        products = (math.prod(length(runs, sizes) for runs in dims) for dims in self.terms)
        return self.factor * sum(min(product, 1) if self.once else product for product in products)


@dataclass(frozen=True)
class Both(Budget):
    first: Budget
    second: Budget

    @property
    def multiple(self) -> int:  # type: ignore[override]
        return math.lcm(self.first.multiple, self.second.multiple)

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
class Layers(Budget):
    """At most so many dormant layers wake up (Sec. 2.3); `firefly.deepen` puts them there."""

    count: int

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or self.count < 0:
            raise FireflyError(f"Layers({self.count!r}): needs a whole number of layers, 0 for none")

    def limits(self, anatomy: Anatomy, widths: list[str]) -> list[Limit]:
        dormant = tuple(((Run(name, 0),),) for name in widths if anatomy[name].dormant)
        return [Limit("layers", self.count, dormant, once=True)]


@dataclass(frozen=True)
class Multiples(Budget):
    """Widths grow to multiples of this number, which GPUs compute faster: `Parameters(50_000) & Multiples(8)`.

    A width takes as many candidates as it lacks to the next multiple, together, or none.
    """

    multiple: int = 8  # type: ignore[misc]

    def __post_init__(self) -> None:
        if not isinstance(self.multiple, int) or self.multiple < 1:
            raise FireflyError(f"Multiples({self.multiple!r}): needs a whole number of at least 1, such as 8")

    def limits(self, anatomy: Anatomy, widths: list[str]) -> list[Limit]:
        return []


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
    power: float = 1.0,
) -> Chosen:
    """Take the best candidates until the budget is spent.

    gains: D_i per width in compact numbering; keys: what to rank by; newest: m' per width;
    candidates: who stands for election; eligible: "gain" for those with D_i > 0 only, "all" for the paper's |s_i|;
    power: rank by key / cost^power: 1 per unit of cost, 0 by the key alone.
    """
    sizes = dict(anatomy.sizes())
    gains, keys, candidates = ({n: value.cpu() for n, value in given.items()} for given in (gains, keys, candidates))
    limits = budget.limits(anatomy, list(gains))
    if not limits:
        raise FireflyError(f"{budget} does not say how much may grow: join it, e.g. firefly.Neurons(64) & {budget}")
    parts = {name: [limit.of(name) for limit in limits] for name in gains}

    load = {
        name: sum(cost / limit.allowed for cost, limit in zip(_price(name, sizes, parts), limits) if not limit.once)
        for name in gains
    }
    ranked = sorted(
        (
            (key / max(load[name], 1e-30) ** power, name, i)
            for name in gains
            for i, key in enumerate(keys[name].tolist())
        ),
        key=lambda row: -row[0],
    )
    allowed = {n: (mask if eligible == "all" else mask & (gains[n] > 0)).tolist() for n, mask in candidates.items()}
    pool = _bundle([row for row in ranked if allowed[row[1]][row[2]]], sizes, budget.multiple)
    given_back: set[str] = set()
    while True:
        taken, grown, spent = _take([one for one in pool if one[0] not in given_back], sizes, limits, parts)
        lonely = [name for name, picks in taken.items() if not sizes[name] and len(picks) < LEAST]
        if not lonely:
            break
        given_back.add(min(lonely, key=lambda name: keys[name][taken[name]].sum().item()))
    more = {name: budget.multiple - grown[name] % budget.multiple for name in gains}
    room = any(_fits(spent, _price(name, grown, parts, more[name]), limits) for name in gains)
    number = sum(len(picks) for _, picks in pool)
    note = f"only {number} candidates lower the loss, so the budget is not used up" if room else None
    if given_back:
        note = f"dormant layers that gave back what they got, as a new layer needs {LEAST} neurons: {len(given_back)}"
    elif pool and not any(taken.values()):
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


Bundle = tuple[str, list[int]]  # candidates of one width that are taken together


def _bundle(ranked: list[tuple[float, str, int]], sizes: Sizes, multiple: int) -> list[Bundle]:
    """Candidates, best first, in bundles that bring their width to the next multiple, and those best first by mean."""
    rows: dict[str, list[tuple[float, int]]] = {}
    for worth, name, i in ranked:
        rows.setdefault(name, []).append((worth, i))
    found = []
    for name, mine in rows.items():
        first, count = 0, multiple - sizes[name] % multiple
        while first + count <= len(mine):
            part = mine[first : first + count]
            found.append((sum(worth for worth, _ in part) / count, name, [i for _, i in part]))
            first, count = first + count, multiple
    return [(name, picks) for _, name, picks in sorted(found, key=lambda row: -row[0])]


def _take(
    pool: list[Bundle], sizes: Sizes, limits: list[Limit], parts: Mapping[str, list[Limit]]
) -> tuple[dict[str, list[int]], dict[str, int], list[float]]:
    """The greedy choice, best first, skipping what no longer fits: who is taken, the grown sizes, what it costs."""
    grown, spent, full = dict(sizes), [0.0] * len(limits), set()
    taken: dict[str, list[int]] = {}
    for name, picks in pool:
        if name in full:
            continue
        price = _price(name, grown, parts, len(picks))
        if not _fits(spent, price, limits):
            full.add(name)
            continue
        taken.setdefault(name, []).extend(picks)
        grown[name] += len(picks)
        spent = [s + cost for s, cost in zip(spent, price)]
    return taken, grown, spent


def _price(name: str, sizes: Sizes, parts: Mapping[str, list[Limit]], count: int = 1) -> list[float]:
    """What so many more neurons of this width cost, in every unit that is limited."""
    more = {**sizes, name: sizes[name] + count}
    return [part.cost(more) - part.cost(sizes) for part in parts[name]]


def _fits(spent: list[float], price: list[float], limits: list[Limit]) -> bool:
    return all(s + cost <= limit.allowed + 1e-9 for s, cost, limit in zip(spent, price, limits))
