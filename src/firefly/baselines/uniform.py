"""Widening every layer alike: the growth rule of hand-made families of networks, and of Net2Net in Sec. 3 of the paper.

Every width grows by the same factor, the largest one under the budget, whatever the budget's unit. Which neurons split
is left to chance. No gradient and no batch is looked at, so it tells what it is worth to know *where* to grow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from firefly.anatomy.widths import Width
from firefly.baselines.random import make_generator, predict_nothing
from firefly.errors import FireflyError
from firefly.method import Method
from firefly.neighborhood.overgrown import Directions, OverGrown
from firefly.stages.budget import Limit
from firefly.stages.losses import Loss
from firefly.stages.selection import Ballot, Chosen
from firefly.stages.step_one import Steps

Added = Mapping[str, float]  # neurons that a width gets, perhaps not a whole number yet


def uniform() -> Method:
    """The same growth factor for every width, as a method for `firefly.grow`.

    With `Split` in the neighbourhood random neurons get a copy a little apart from them; with `New` alone the neurons
    are brand new: random incoming weights, no outgoing ones yet, so that the function stays exactly the same.
    """
    return Method(name="uniform", descend=keep_start, score=predict_nothing, select=select_evenly, trust=False)


def keep_start(over: OverGrown, loss: Loss, batches: Iterable[Any], steps: Steps) -> Directions:
    """Instead of step one, nothing: copies begin a little apart, new neurons with random rows and zero columns."""
    return Directions(over.delta, over.epsilon)


def select_evenly(ballot: Ballot) -> Chosen:
    """The same share of every width, of random neurons; brand-new ones only where none that exists is a candidate."""
    generator = make_generator(2)
    anatomy, standing, names = ballot.anatomy, ballot.standing, list(ballot.gains)
    limits, present = ballot.budget.limits(anatomy, names), anatomy.sizes()
    splitting = any(bool(standing[name][: present[name]].any()) for name in names)
    shares = find_shares(limits, present, _shuffled(names, generator))
    picks = {}
    for name in names:
        first = 0 if splitting else present[name]
        most = present[name] if splitting else len(standing[name]) - first
        _check_share(anatomy[name], shares[name], most, splitting)
        if shares[name]:
            picks[name] = first + torch.randperm(most, generator=generator)[: shares[name]].sort().values
    spent = {limit.what: (_rise(limit, present, shares), limit.allowed) for limit in limits}
    return Chosen(picks, 0.0, spent, None if picks else "the budget is smaller than any one neuron")


def find_shares(limits: list[Limit], present: Mapping[str, int], names: list[str]) -> dict[str, int]:
    """How many neurons each width gets: c·size rounded down for the largest c that fits, and one more where it fits.

    The widths farthest below c·size come first; of equal ones those named first.
    """

    def fits(added: Added) -> bool:
        return all(_rise(limit, present, added) <= limit.allowed + 1e-9 for limit in limits)

    factor = _find_largest(lambda c: fits({name: c * present[name] for name in names}))
    wanted = {name: factor * present[name] for name in names}
    shares = {name: math.floor(wanted[name]) for name in names}
    for name in sorted(names, key=lambda name: shares[name] - round(wanted[name], 6)):
        more = {**shares, name: shares[name] + 1}
        if wanted[name] > shares[name] and fits(more):
            shares = more
    return shares


def _find_largest(fits: Callable[[float], bool]) -> float:
    """The largest number that fits, by bisection."""
    low, high = 0.0, 1.0
    while fits(high) and high < 2**20:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _rise(limit: Limit, present: Mapping[str, int], added: Added) -> float:
    """What the added neurons cost."""
    after: Any = {**present, **{name: present[name] + count for name, count in added.items()}}
    return limit.cost(after) - limit.cost(present)


def _shuffled(names: list[str], generator: torch.Generator) -> list[str]:
    return [names[i] for i in torch.randperm(len(names), generator=generator).tolist()]


def _check_share(width: Width, share: int, most: int, splitting: bool) -> None:
    if share <= most:
        return
    new = f"neighborhood=[firefly.New({share * width.block})]"
    if splitting:
        raise FireflyError(
            f"width {width.name!r}: the budget gives it {share} more neurons, but a growth copies each of its {most} "
            f"once at most: grow by less and more often, or use firefly.baselines.uniform() with {new}"
        )
    raise FireflyError(
        f"width {width.name!r}: the budget gives it {share} more neurons, but it has {most} candidates: pass {new}"
    )
