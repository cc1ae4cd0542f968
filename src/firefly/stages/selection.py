"""The choice under a budget (eq. 5): the best candidates, by their gain per unit of cost, until it is spent.

For `Neurons` every candidate costs the same, so that is the order of the gains. Those that no longer fit are skipped. A
dormant layer with fewer than two neurons gives them back, and they are spent on the next best.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from firefly.anatomy.widths import Anatomy
from firefly.errors import FireflyError
from firefly.neighborhood.overgrown import Epsilon, OverGrown
from firefly.stages.budget import Budget, Limit, Sizes
from firefly.stages.scores import Gains

LEAST = 2  # neurons that a new layer needs, or it gives them up (App. B.2)


@dataclass(frozen=True)
class Ballot:
    """What a selection gets: who stands, what each is worth and brings, and what may be spent. All per slot."""

    anatomy: Anatomy
    budget: Budget
    gains: Mapping[str, Tensor]  # D_i
    keys: Mapping[str, Tensor]  # what to rank by
    standing: Mapping[str, Tensor]  # who is a candidate
    adds: Mapping[str, Tensor]  # how many neurons each brings
    everyone: bool = False  # whether candidates with D_i <= 0 may be taken, too


@dataclass(frozen=True)
class Chosen:
    """The candidates that a growth takes: their slots per width, ascending, and why there are no more."""

    slots: Mapping[str, Tensor]
    predicted: float = 0.0
    spent: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # what: (spent, allowed)
    note: str | None = None

    def __len__(self) -> int:
        return sum(len(numbers) for numbers in self.slots.values())


def make_ballot(over: OverGrown, gains: Gains, budget: Budget, rank: str) -> Ballot:
    """rank: "decrease" takes those with the largest D_i > 0; "magnitude" those with the largest |s_i|, as the paper."""
    adds = {name: slots.adds for name, slots in over.slots.items()}
    standing = {name: (epsilon > 0).cpu() for name, epsilon in over.epsilon.items()}
    gains = {name: gain.cpu() for name, gain in gains.items()}
    if not all(bool(gain.isfinite().all()) for gain in gains.values()):
        raise FireflyError("the scores are not numbers: check the loss and the batches, and their gradients")
    if rank == "decrease":
        return Ballot(over.anatomy, budget, gains, gains, standing, adds)
    slopes = {name: (gain / over.epsilon[name].cpu().clamp(min=1e-30)).abs() for name, gain in gains.items()}
    return Ballot(over.anatomy, budget, gains, slopes, standing, adds, everyone=True)


def aim(over: OverGrown, gains: Gains, rank: str) -> Epsilon:
    """ε of the chosen: by magnitude also those are taken that lower the loss only in the opposite direction."""
    if rank == "decrease":
        return over.epsilon
    return {name: epsilon * torch.where(gains[name] < 0, -1.0, 1.0) for name, epsilon in over.epsilon.items()}


def select(ballot: Ballot, everyone: bool = False, power: float = 1.0) -> Chosen:
    """Take the best candidates until the budget is spent.

    everyone: also those with D_i <= 0; power: rank by key / cost^power, 1 per unit of cost, 0 by the key alone.
    """
    anatomy, budget, gains, keys = ballot.anatomy, ballot.budget, ballot.gains, ballot.keys
    sizes = dict(anatomy.sizes())
    limits = budget.limits(anatomy, list(gains))
    if not limits:
        raise FireflyError(f"{budget} does not say how much may grow: join it, e.g. firefly.Neurons(64) & {budget}")
    bounded = not all(limit.once for limit in limits)  # else only layers are counted, and only they may grow
    units = list_units(budget, anatomy, [name for name in gains if bounded or anatomy[name].dormant])
    parts = {unit: [limit.of(unit) for limit in limits] for unit in units}
    ranked = _bundle(_rank(ballot, everyone, power, limits, parts), units, sizes, budget.multiple)
    pool = [bundle for worth, bundle in ranked if worth > 0 or everyone or ballot.everyone]
    given_back: set[str] = set()
    while True:
        taken, grown, spent = _take([one for one in pool if not given_back & one.keys()], sizes, limits, parts)
        lonely = [name for name in taken if not sizes[name] and grown[name] < LEAST]
        if not lonely:
            break
        given_back.add(min(lonely, key=lambda name: keys[name][taken[name]].sum().item()))
    numbers = {name: torch.tensor(sorted(picks), dtype=torch.long) for name, picks in taken.items() if picks}
    more = {name: budget.multiple - grown[name] % budget.multiple for name in gains}
    room = any(_fits(spent, _price({n: more[n] for n in unit}, grown, parts), limits) for unit in units)
    count = sum(len(picks) for bundle in pool for picks, _ in bundle.values())
    note = f"candidates that lower the loss: only {count}, so the budget is not used up"
    if given_back:
        note = f"dormant layers that gave back what they got, as a new layer needs {LEAST} neurons: {len(given_back)}"
    elif not any(bool(gain.any()) for gain in gains.values()) and not numbers:
        note = NO_GRADIENT
    elif pool and not numbers:
        note = "the budget is smaller than any one neuron"
    predicted = sum(gains[name][picks].sum().item() for name, picks in numbers.items())
    told = {limit.what: (cost, limit.allowed) for limit, cost in zip(limits, spent)}
    return Chosen(numbers, predicted, told, note if room or given_back or not numbers else None)


NO_GRADIENT = (
    "every candidate is worth exactly nothing, so nothing has grown: what reads them is multiplied with zero, as by a "
    "zero-initialised last layer or residual scale; train a few steps first"
)


def list_units(budget: Budget, anatomy: Anatomy, widths: list[str]) -> list[tuple[str, ...]]:
    """The widths that grow together, each by itself if nothing ties it to others."""
    found: list[set[str]] = []
    for tie in [*budget.ties(anatomy, widths), *((name,) for name in widths)]:
        joined = set(tie).union(*(one for one in found if one & set(tie)))
        found = [one for one in found if not one & joined] + [joined]
    return [tuple(name for name in widths if name in one) for one in found]


Row = tuple[float, str, int, int]  # worth per cost, width, slot, neurons that it brings
Unit = tuple[str, ...]  # widths that grow together
Bundle = dict[str, tuple[list[int], int]]  # per width the candidates that are taken together, neurons that they bring


def _rank(
    ballot: Ballot, everyone: bool, power: float, limits: list[Limit], parts: Mapping[Unit, list[Limit]]
) -> list[Row]:
    """Who may be taken, best first; of widths that are tied also those that others have to make up for."""
    sizes = ballot.anatomy.sizes()
    rows = []
    for unit in parts:
        price = _price(dict.fromkeys(unit, 1), sizes, parts)
        load = sum(cost / limit.allowed for cost, limit in zip(price, limits) if not limit.once) / len(unit)
        cost = max(load, 1e-30) ** power
        for name in unit:
            whole = everyone or ballot.everyone or len(unit) > 1
            allowed = ballot.standing[name] if whole else ballot.standing[name] & (ballot.gains[name] > 0)
            worth, adds = ballot.keys[name].tolist(), ballot.adds[name].tolist()
            rows += [(worth[i] / (adds[i] * cost), name, i, adds[i]) for i in allowed.nonzero().flatten().tolist()]
    return sorted(rows, key=lambda row: -row[0])


def _bundle(ranked: list[Row], units: list[Unit], sizes: Sizes, multiple: int) -> list[tuple[float, Bundle]]:
    """Candidates in bundles that bring their widths to the next multiple, with their mean worth, best first."""
    rows: dict[str, list[Row]] = {}
    for row in ranked:
        rows.setdefault(row[1], []).append(row)
    order = {name: place for place, name in enumerate(rows)}
    found: list[tuple[float, Bundle]] = []
    for unit in sorted(units, key=lambda unit: min(order.get(name, len(order)) for name in unit)):
        sums = {name: list(accumulate(row[3] for row in rows.get(name, []))) for name in unit}
        steps = [{total for total in sums[name] if (sizes[name] + total) % multiple == 0} for name in unit]
        last = dict.fromkeys(unit, 0)
        for total in sorted(set.intersection(*steps)):
            part = {name: rows[name][last[name] : sums[name].index(total) + 1] for name in unit}
            last = {name: sums[name].index(total) + 1 for name in unit}
            worth = [row[0] for some in part.values() for row in some]
            bundle = {name: ([row[2] for row in some], sum(row[3] for row in some)) for name, some in part.items()}
            found.append((sum(worth) / len(worth), bundle))
    return sorted(found, key=lambda one: -one[0])


def _take(
    pool: list[Bundle], sizes: Sizes, limits: list[Limit], parts: Mapping[Unit, list[Limit]]
) -> tuple[dict[str, list[int]], dict[str, int], list[float]]:
    """The greedy choice, best first, skipping what no longer fits: who is taken, the grown sizes, what it costs."""
    grown, spent, full = dict(sizes), [0.0] * len(limits), set()
    taken: dict[str, list[int]] = {}
    for bundle in pool:
        adds = {name: count for name, (_, count) in bundle.items()}
        if tuple(adds.items()) in full:
            continue
        price = _price(adds, grown, parts)
        if not _fits(spent, price, limits):
            full.add(tuple(adds.items()))
            continue
        for name, (picks, count) in bundle.items():
            taken.setdefault(name, []).extend(picks)
            grown[name] += count
        spent = [s + cost for s, cost in zip(spent, price)]
    return taken, grown, spent


def _price(adds: Mapping[str, int], sizes: Sizes, parts: Mapping[Unit, list[Limit]]) -> list[float]:
    """What so many more neurons of widths that grow together cost, in every unit that is limited."""
    more = {**sizes, **{name: sizes[name] + count for name, count in adds.items()}}
    return [part.cost(more) - part.cost(sizes) for part in parts[tuple(adds)]]


def _fits(spent: list[float], price: list[float], limits: list[Limit]) -> bool:
    return all(s + cost <= limit.allowed + 1e-9 for s, cost, limit in zip(spent, price, limits))
