"""Net2Net's wider operation (Chen, Goodfellow & Shlens 2016), which Firefly is compared with (Sec. 3, App. B.2).

Random neurons are copied, and the weights that read them are divided among the copies, so that the larger network
computes the same function. A little noise on the incoming weights then lets the copies go different ways. Firefly's
experiment widens every layer by the same share.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from firefly.baselines.random import make_generator, predict_nothing, select_at_random
from firefly.baselines.uniform import select_evenly
from firefly.errors import FireflyError
from firefly.method import Method
from firefly.neighborhood.kinds import Split
from firefly.neighborhood.overgrown import Directions, OverGrown
from firefly.stages.losses import Loss
from firefly.stages.selection import Ballot, Chosen
from firefly.stages.step_one import Steps
from firefly.tensors import Layout, along, along_runs


def net2net(noise: float = 0.05, everywhere: bool = True) -> Method:
    """Random copies as a method for `firefly.grow`; it looks at no data.

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
        neighborhood=(Split(),),
    )


@torch.no_grad()
def separate_copies(over: OverGrown, loss: Loss, batches: Iterable[Any], steps: Steps, *, noise: float) -> Directions:
    """Instead of step one: a neuron and its copy get rows that differ by noise, half of it each way.

    Biases are copied as they are, like whatever follows a neuron.
    """
    check_copies(over, "net2net only copies neurons")
    generator = make_generator(1)
    found = {}
    for name, delta in over.delta.items():
        drawn = torch.randn(delta.shape, generator=generator, dtype=delta.dtype).to(delta.device)
        make = over.layouts[name].role("makes")
        rows = make is not None and delta.ndim > 1 and delta.numel() > 0  # of dormant layers they are empty
        noisy = noise * drawn * measure_deviation(over, over.layouts[name]) if rows else torch.zeros_like(delta)
        found[name] = noisy.detach()
    return Directions(found, {name: 0.5 / scale for name, scale in over.scale.items()})  # the displacement ε·s·δ is δ/2


def measure_deviation(over: OverGrown, layout: Layout) -> Tensor:
    """The standard deviation of every row that makes a neuron; of rows with none, the neuron's own size instead."""
    make = layout.roles.index("makes")
    base = over.base[layout.name].float()
    rows = base.transpose(0, make).flatten(1).std(1, correction=0)
    rows = torch.where(rows > 0, rows, along_runs(layout.dims[make], over.scale, 0.0, rows))
    return along(rows, make, base.ndim)


def check_copies(over: OverGrown, what: str) -> None:
    """Refuse a neighbourhood in which a neuron does not become two halves, or that has brand-new ones."""
    if any(kind.becomes != Split.becomes for kind in over.kinds):
        raise FireflyError(f"{what}: pass neighborhood=[firefly.Split()], without firefly.New")


def select_anywhere(ballot: Ballot) -> Chosen:
    """Candidates of all widths at random, each once; an error where the budget asks for more than there are."""
    chosen = select_at_random(ballot)
    if not chosen.note or not len(chosen):
        return chosen
    if len(chosen) == sum(int(mask.sum()) for mask in ballot.standing.values()):
        raise FireflyError(
            f"the budget asks for more than the {len(chosen)} candidates of this growth, and each serves once: grow by "
            "less and more often, or give brand-new neurons a larger firefly.New(count)"
        )
    return dataclasses.replace(chosen, note="some budget is left: the neurons that would fit have been taken already")
