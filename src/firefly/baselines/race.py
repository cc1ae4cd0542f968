"""A race of neighbourhoods: which kind of growth pays now? Grow a copy by each, train each a little, keep the best.

What a growth is worth at birth says little about the network a few epochs later, and kinds differ in that: a new neuron
is worth most while a network is tiny. A race asks the few epochs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from firefly.anatomy.tracing import trace
from firefly.baselines.random import keep_best
from firefly.descent import grow
from firefly.errors import FireflyError
from firefly.growth import Growth
from firefly.neighborhood.kinds import Kind, New, Split, read_neighborhood
from firefly.stages.losses import Loss

LANES = ((Split(),), (New(),), (Split(), New()))


def race(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Any],
    *,
    example: Any,
    tune: Callable[[nn.Module], None],
    judge: Callable[[nn.Module], float],
    neighborhoods: Sequence[Kind | Iterable[Kind]] = LANES,
    optimizer: torch.optim.Optimizer | None = None,
    also: Iterable[nn.Module] = (),
    seed: int = 0,
    **how: Any,
) -> Growth:
    """Grow a copy of the model by each neighbourhood, train each, and give the model the size and weights of the best.

    Args:
        tune: trains a grown copy in place, an epoch or so.
        judge: the error of a trained copy on data that it was not trained on, lower is better.
        neighborhoods: what to choose from; None of them may be empty.
        also: models of the same architecture that grow as the model does; their weights are not those of the best.
        how: the other options of `firefly.grow`: budget, widths, steps ...

    The growth that comes back describes the best growth before its training; its notes hold what every copy reached.
    """
    if iter(batches) is batches:
        raise FireflyError("race reads the batches once for every neighbourhood: give a list or a DataLoader")
    lanes = [read_neighborhood(lane) for lane in neighborhoods]
    if len(lanes) < 2:
        raise FireflyError(f"race(neighborhoods=...): a race of {len(lanes)}; give at least two neighbourhoods")
    if "preview" in how:
        raise FireflyError("race trains what it compares, so it has no preview: race a copy of the model")
    shared = {"loss": loss, "batches": batches, "example": example, "seed": seed, **how}
    shared["anatomy"] = how.get("anatomy") or trace(model, example)
    growths = [partial(grow, **shared, neighborhood=lane) for lane in lanes]
    growth, reached = keep_best(model, growths, tune, judge, optimizer, seed, also=list(also))
    names = ", ".join(" and ".join(kind.name for kind in lane) for lane in lanes)
    return dataclasses.replace(growth, notes=(*growth.notes, f"the best of {names}, trained: {reached}"))
