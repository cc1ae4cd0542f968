"""The trust region of a growth: shorten the step wherever the loss would rise, and let nothing through but numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from firefly.anatomy.examples import run_examples
from firefly.errors import FireflyError
from firefly.neighborhood.overgrown import Epsilon, OverGrown
from firefly.stages.commit import Plans, make_grown
from firefly.stages.losses import Loss, mean_loss, measure_loss
from firefly.stages.scores import scaled
from firefly.surgery.norms import adopt_statistics, average_statistics
from firefly.surgery.quiet import is_training, reseed
from firefly.surgery.swap import clone_buffers, find_owner, swapped, switched

FACTORS = [0.5**halvings for halvings in range(12)]  # of the step that are tried


def shorten(over: OverGrown, loss: Loss, held: list[Any], limit: float, seed: int) -> tuple[float, float]:
    """L(ε̃), and the factor of the step; while it is not below the limit, take half of the step."""
    whole = over.epsilon
    for factor in FACTORS:
        over.epsilon = scaled(whole, factor)
        reseed(seed)
        with over.attached():
            value = mean_loss(loss, over.model, held)
        if value < limit:
            break
    if not math.isfinite(value):
        raise FireflyError(f"the loss of the over-grown network is {value}: check the batches, or lower the epsilon")
    return value, factor


def settle(
    over: OverGrown,
    plans: Plans,
    sizes: Mapping[str, int],
    epsilon: Epsilon,
    loss: Loss,
    held: list[Any],
    limit: float,
    seed: int,
) -> tuple[dict[str, Tensor], float, float]:
    """The grown tensors, their loss, and the factor of the step; while it is above the limit, take half of the step."""
    sized = over.anatomy.mirrored(sizes)
    for factor in FACTORS:
        tensors = make_grown(over, plans, scaled(epsilon, factor))
        after = measure_loss(loss, over.model, held, seed, tensors, sized)
        if after <= limit:
            break
    if not math.isfinite(after):
        raise FireflyError(f"the loss of the grown network is {after}: check the batches, or lower the epsilon")
    if is_training(over.model):
        own = clone_buffers(over.model)
        grown = {name: tensor.clone() for name, tensor in tensors.items()}
        with swapped(over.model, own):
            average_statistics(over.model, loss, held)
        with swapped(over.model, {**{n: b.clone() for n, b in own.items()}, **grown}, sized):
            average_statistics(over.model, loss, held)
        # of a norm in eval mode the statistics are part of the function that was optimised
        live = {name: plan for name, plan in plans.items() if find_owner(over.model, name).training}
        adopt_statistics(live, tensors, own, grown)
    _check_finite(tensors, over.base)
    return tensors, after, factor


def _check_finite(tensors: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> None:
    """Refuse what is not a number, unless it was there before."""
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()) and bool(base[name].isfinite().all()):
            raise FireflyError(
                f"{name} would no longer be finite after this growth, so nothing was grown: a batch gives a loss or "
                "statistics that are not a number; check the batches"
            )


@torch.no_grad()
def measure_change(model: nn.Module, example: Any, tensors: Mapping[str, Tensor], sizes: Any) -> float:
    """The largest |f_{t+1}(x) - f_t(x)| on the example, in eval mode."""
    copies = clone_buffers(model)
    with switched(model.modules(), False):
        with swapped(model, copies):
            before = run_examples(model, example)
        with swapped(model, {**copies, **tensors}, sizes):
            after = run_examples(model, example)
    pairs = [(a, b) for a, b in zip(before, after) if a.is_floating_point() and a.numel()]
    changes = [torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs()).max().item() for a, b in pairs]
    change = max(changes, default=0.0)
    if not all(map(math.isfinite, changes)):
        raise FireflyError(
            f"the output on the example would change by {change}, so nothing was grown: it must stay finite"
        )
    return change
