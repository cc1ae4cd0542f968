"""Fast splitting (Wang et al. 2019): splitting steepest descent from mini-batches, without an eigenvalue solver.

The lowest eigenvector of a neuron's splitting matrix S minimises the Rayleigh quotient vᵀSv / vᵀv. One mini-batch gives
S·v for all neurons of all widths (`splitting.multiply`), hence the slope of every quotient; RMSprop follows it, and the
vectors get their length back after every step. What counts are the means over the last part of the way, as in the
original. The energy-aware choice is the budget's: under `firefly.Flops` neurons are ranked by gain per cost. Firefly
compares with splitting in Sec. 3 and App. B.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any

import torch

from firefly.baselines.splitting import PerNeuron, Vectors, begin, count_weights, dot, multiply, normalise, take, times
from firefly.errors import FireflyError
from firefly.method import Method
from firefly.neighborhood.kinds import Split
from firefly.neighborhood.overgrown import Directions, OverGrown
from firefly.stages.batches import endless
from firefly.stages.losses import Loss
from firefly.stages.scores import Gains
from firefly.stages.selection import select
from firefly.stages.step_one import Steps

PHASES, FALL = 5, 0.2  # the learning rate falls to a fifth with every fifth of the way
LAST = 10  # the means are over the last tenth


def fast_splitting(
    step: float = 0.01, iterations: int = 100, lr: float = 0.05, sharpness: float = 3.0, always: bool = False
) -> Method:
    """Fast splitting as a method for `firefly.grow`; it only splits.

    Args:
        step: ‖u‖, how far the two copies of a neuron move, in the unit of its weights.
        iterations: mini-batches, each one product with all splitting matrices.
        lr: of RMSprop, relative to the root mean square of a vector's entries.
        sharpness: β of the softplus whose second derivative stands in for that of ReLU.
        always: spend the whole budget even on neurons with λ ≥ 0, as the authors' code does.
    """
    for name, value in (("step", step), ("iterations", iterations), ("lr", lr), ("sharpness", sharpness)):
        if not value > 0:
            raise FireflyError(f"fast_splitting({name}={value!r}): must be above 0")
    lowest: PerNeuron = {}  # λ, from the descent to the score
    return Method(
        name="fast splitting",
        descend=partial(find_directions, step=step, iterations=iterations, lr=lr, sharpness=sharpness, lowest=lowest),
        score=partial(score_quotients, step=step, lowest=lowest),
        select=partial(select, everyone=True) if always else select,
        trust=False,
        neighborhood=(Split(),),
    )


def find_directions(
    over: OverGrown,
    loss: Loss,
    batches: Iterable[Any],
    steps: Steps,
    *,
    step: float,
    iterations: int,
    lr: float,
    sharpness: float,
    lowest: PerNeuron,
) -> Directions:
    """Instead of step one: δ_i approaches the eigenvector of λ_min(S_i); `lowest` gets the λ_i."""
    start = begin(over, "fast splitting")

    def product(k: int, vectors: Vectors) -> Vectors:
        steps.report(k + 1, iterations)
        return multiply(over, loss, [next(way)], vectors, sharpness)

    way = islice(endless(batches), iterations)
    values, vectors = descend_quotients(over, product, start, iterations, lr)
    lowest.clear()
    lowest.update(values)
    return take(over, vectors, step)


def descend_quotients(
    over: OverGrown, product: Callable[[int, Vectors], Vectors], start: Vectors, iterations: int, lr: float
) -> tuple[PerNeuron, Vectors]:
    """λ and its unit vector for every neuron; product(k, vectors): S·v on the k-th mini-batch."""
    lengths = {name: count.sqrt() for name, count in count_weights(over, start).items()}
    vectors = stretch(over, start, lengths)  # entries of about one, so that one rate suits neurons of every size
    optimizer = torch.optim.RMSprop(list(vectors.values()), lr=lr, alpha=0.9, momentum=0.9, eps=1e-30)
    last = max(1, iterations // LAST)
    mean_value = {name: torch.zeros_like(length) for name, length in lengths.items()}
    mean_vector = {name: torch.zeros_like(vector) for name, vector in vectors.items()}
    for k in range(iterations):
        optimizer.param_groups[0]["lr"] = lr * FALL ** (k * PHASES // iterations)
        values, slopes = differentiate_quotients(over, vectors, product(k, vectors))
        if k >= iterations - last:
            mean_value = {name: mean + values[name] / last for name, mean in mean_value.items()}
            mean_vector = {name: mean + vectors[name] / last for name, mean in mean_vector.items()}
        for name, vector in vectors.items():
            vector.grad = slopes[name]
        optimizer.step()
        for name, vector in stretch(over, vectors, lengths).items():
            vectors[name].copy_(vector)
    return mean_value, stretch(over, mean_vector, {name: torch.ones_like(length) for name, length in lengths.items()})


def differentiate_quotients(over: OverGrown, vectors: Vectors, products: Vectors) -> tuple[PerNeuron, Vectors]:
    """vᵀSv / vᵀv for every neuron, and its slope in v up to a factor: Sv - λv."""
    squares = dot(over, vectors, vectors)
    values = {n: value / squares[n].clamp(min=1e-300) for n, value in dot(over, vectors, products).items()}
    own = times(over, values, vectors)
    return values, {name: products[name] - own[name] for name in own}


def stretch(over: OverGrown, vectors: Vectors, lengths: PerNeuron) -> Vectors:
    """The vectors of all neurons with these lengths."""
    nothing = {name: torch.zeros_like(length) for name, length in lengths.items()}
    return times(over, lengths, normalise(over, vectors, nothing)[0])


def score_quotients(
    over: OverGrown, loss: Loss, batches: list[Any], path: str, *, step: float, lowest: PerNeuron
) -> Gains:
    """D_i = -½·step²·λ_i, with the λ_i found on the way."""
    return {name: -0.5 * step**2 * value for name, value in lowest.items()}
