"""Net2Net's wider operation (Chen, Goodfellow & Shlens 2016), which Firefly is compared with (Sec. 3, App. B.2).

Random neurons are copied, and the weights that read them are divided among the copies, so that the larger network
computes the same function. A little noise on the incoming weights then lets the copies go different ways. Firefly's
experiment widens every layer by the same share.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from firefly.anatomy.widths import Anatomy
from firefly.baselines.random import make_generator, predict_nothing, select_at_random
from firefly.baselines.uniform import select_evenly
from firefly.descent import Method
from firefly.errors import FireflyError
from firefly.neighborhood.overgrown import OverGrown
from firefly.stages.budget import Budget, Chosen
from firefly.stages.scores import Loss, Steps
from firefly.tensors import Layout, along, spread


def net2net(noise: float = 0.05, everywhere: bool = True) -> Method:
    """Random copies as a method for `firefly.grow(..., neighborhood=[firefly.Split()])`; it looks at no data.

    Args:
        noise: how far a neuron and its copy are apart: the standard deviation of the difference of their incoming
            weights, as a share of that of the row. 0 leaves the function exactly as it was, and the two tied.
        everywhere: widen every width by the same share, as in the paper's experiment; False takes neurons at random,
            wherever they are.
    """
    if not (isinstance(noise, (int, float)) and math.isfinite(noise) and noise >= 0):
        raise FireflyError(f"net2net(noise={noise!r}): must be a number of at least 0")
    return Method(
        name="net2net",
        descend=partial(separate_copies, noise=noise),
        score=predict_nothing,
        select=select_evenly if everywhere else select_anywhere,
        trust=False,
    )


@torch.no_grad()
def separate_copies(over: OverGrown, loss: Loss, batches: Iterable[Any], steps: Steps, *, noise: float) -> None:
    """Instead of step one: a neuron and its copy get rows that differ by noise, half of it each way.

    Biases are copied as they are, like whatever follows a neuron.
    """
    if over.split is None or over.new is not None:
        raise FireflyError("net2net only copies neurons: pass neighborhood=[firefly.Split()], without firefly.New")
    generator = make_generator(1)
    for name, delta in over.delta.items():
        drawn = torch.randn(delta.shape, generator=generator, dtype=delta.dtype).to(delta.device)
        make = over.layouts[name].role("makes")
        rows = make is not None and delta.ndim > 1 and delta.numel() > 0  # of dormant layers they are empty
        delta.copy_(noise * drawn * measure_spread(over, over.layouts[name]) if rows else torch.zeros_like(delta))
    over.epsilon = {name: 0.5 / over.scale[name] for name in over.epsilon}  # the displacement ε·s·δ is δ/2


def measure_spread(over: OverGrown, layout: Layout) -> Tensor:
    """The standard deviation of every row that makes a neuron; of rows with none, the neuron's own size instead."""
    make = layout.roles.index("makes")
    base = over.base[layout.name].float()

    def size(width: str) -> Tensor:
        many = next(run.size for run in layout.dims[make] if run.width == width)
        return over.scale[width] if width in over.scale else torch.zeros(many, device=base.device)

    rows = base.transpose(0, make).flatten(1).std(1, correction=0)
    rows = torch.where(rows > 0, rows, spread(layout.dims[make], size, 0.0, rows))
    return along(rows, make, base.ndim)


def select_anywhere(
    anatomy: Anatomy,
    gains: Mapping[str, Tensor],
    keys: Mapping[str, Tensor],
    budget: Budget,
    newest: Mapping[str, int],
    candidates: Mapping[str, Tensor],
    eligible: str = "all",
) -> Chosen:
    """Candidates of all widths at random, each once; an error where the budget asks for more than there are."""
    chosen = select_at_random(anatomy, gains, keys, budget, newest, candidates)
    if not chosen.note or not len(chosen):
        return chosen
    if len(chosen) == sum(int(mask.sum()) for mask in candidates.values()):
        raise FireflyError(
            f"the budget asks for more than the {len(chosen)} candidates of this growth, and each serves once: grow by "
            "less and more often, or give brand-new neurons a larger firefly.New(count)"
        )
    return dataclasses.replace(chosen, note="some budget is left: the neurons that would fit have been taken already")
