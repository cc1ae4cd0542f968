"""Neural architecture search by hill climbing (NASH, Elsken, Metzen & Hutter 2017), as compared with in App. B.2.

One step of the climb: widen a few copies of the network at random without changing its function, and perhaps give each
new layers at random places; train each for a while, and go on with the one that does best on held-out data.
`random_search` is its cheap relative.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import nn

from firefly.anatomy.tracing import trace
from firefly.anatomy.widths import Anatomy, Widths, pick_widths
from firefly.baselines.net2net import net2net, select_anywhere
from firefly.baselines.random import keep_best, predict_nothing
from firefly.baselines.uniform import keep_start
from firefly.descent import grow
from firefly.errors import FireflyError
from firefly.growth import Growth, join
from firefly.method import Method
from firefly.neighborhood.kinds import Kind, New, Split
from firefly.stages.budget import Budget, Neurons
from firefly.stages.losses import Loss
from firefly.stages.selection import LEAST, Ballot, Chosen


def nash(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Any],
    *,
    example: Any,
    tune: Callable[[nn.Module], None],
    judge: Callable[[nn.Module], float],
    budget: Budget = Neurons(fraction=0.3),  # noqa: B008
    neighbours: int = 8,
    kind: str = "split",
    noise: float = 0.05,
    count: int = 50,
    insert: int = 0,
    keep_parent: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    widths: Widths = None,
    anatomy: Anatomy | None = None,
    evaluate_on: int = 8,
    seed: int = 0,
) -> Growth:
    """Widen copies of the model at random, train each, and give the model the size and the weights of the best.

    Args:
        tune: trains a widened copy in place (17 epochs with one cosine cycle in the paper).
        judge: the error of a trained copy on data that it was not trained on, lower is better.
        neighbours: how many copies to compare.
        kind: "split" copies random neurons (`net2net`), as in the paper; "new" adds brand-new neurons with random
            incoming and zero outgoing weights, as the authors of NASH define their morphism of type II.
        noise: of `net2net`, for splits.
        count: how many new neurons a width may get.
        insert: before it is widened, every neighbour gets one more layer at each place where `firefly.deepen` has put
            dormant ones: a random one of them wakes with so many neurons, which have random incoming and zero outgoing
            weights. It takes the place of the morphism of type I. 0 for none. `budget` is for the widening alone.
        keep_parent: the first of the neighbours is the parent itself, trained but not widened; it may win.

    The other arguments are those of `firefly.grow`, but the budget is 30 % of the neurons unless told. The growth that
    comes back describes the best widening before its training; its notes hold what every neighbour reached.
    """
    if not isinstance(neighbours, int) or neighbours < 1 + keep_parent:
        raise FireflyError(f"nash(neighbours={neighbours!r}): needs a whole number of at least {1 + keep_parent}")
    if not isinstance(insert, int) or insert < 0 or insert == 1:
        raise FireflyError(f"nash(insert={insert!r}): a new layer needs at least {LEAST} neurons, or 0 for no layers")
    kinds, method = _widening(kind, noise, count)
    still = dataclasses.replace(method, select=select_nothing)
    anatomy = trace(model, example) if anatomy is None else anatomy
    shared: dict[str, Any] = {
        "loss": loss,
        "batches": list(islice(batches, 2 * evaluate_on)),  # `grow` leaves half of them to step one
        "example": example,
        "evaluate_on": evaluate_on,
    }
    widening = {**shared, "neighborhood": kinds, "budget": budget, "widths": _awake(anatomy, widths)}
    methods = [still if keep_parent and k == 0 else method for k in range(neighbours)]
    growths: list[Callable[..., Growth]] = []
    for k, one in enumerate(methods):
        widen = partial(grow, **widening, method=one, seed=seed * neighbours + k)
        layers = draw_layers(anatomy, seed * neighbours + k) if insert and one is not still else []
        birth = partial(grow, **shared, widths=layers, **plan_birth(insert, len(layers)), seed=seed * neighbours + k)
        growths.append(partial(_insert_and_widen, anatomy, birth if layers else None, widen))
    growth, reached = keep_best(model, growths, tune, judge, optimizer, seed)
    note = f"the best of {neighbours} neighbours, trained: {reached}{', the parent first' if keep_parent else ''}"
    return dataclasses.replace(growth, notes=(*growth.notes, note))


def _widening(kind: str, noise: float, count: int) -> tuple[list[Kind], Method]:
    """The candidates of a random widening that preserves the function, and how they are taken."""
    if kind == "split":
        return [Split()], net2net(noise, everywhere=False)
    if kind == "new":
        return [New(count)], Method("nash", keep_start, predict_nothing, select_anywhere, trust=False)
    raise FireflyError(f"nash(kind={kind!r}): must be 'split' or 'new'")


def _awake(anatomy: Anatomy, widths: Widths) -> list[str]:
    """The widths that are widened: those that have neurons already."""
    return [name for name in pick_widths(anatomy, widths) if not anatomy[name].dormant]


def draw_layers(anatomy: Anatomy, seed: int) -> list[str]:
    """One dormant layer of every place that has any, at random."""
    generator = torch.Generator().manual_seed(seed)
    places = anatomy.dormant_layers().values()
    return [names[int(torch.randint(len(names), (), generator=generator))] for names in places]


def plan_birth(neurons: int, layers: int) -> dict[str, Any]:
    """How so many layers wake: all candidates are taken, with zero outgoing weights."""
    method = Method("nash", keep_start, predict_nothing, select_anywhere, trust=False)
    return {"neighborhood": [New(neurons)], "budget": Neurons(neurons * layers), "method": method} if layers else {}


def _insert_and_widen(
    anatomy: Anatomy,
    birth: Callable[..., Growth] | None,
    widen: Callable[..., Growth],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
) -> Growth:
    """New layers, if there are any left to wake, then what was there before."""
    if birth is None:
        return widen(model, anatomy=anatomy, optimizer=optimizer)
    first = birth(model, anatomy=anatomy, optimizer=optimizer)
    larger = anatomy.resized({name: after for name, (_, after) in first.widths.items()})
    return join(first, widen(model, anatomy=larger, optimizer=optimizer))


def select_nothing(ballot: Ballot) -> Chosen:
    return Chosen({}, note="not widened: the parent was the best of its neighbours")
