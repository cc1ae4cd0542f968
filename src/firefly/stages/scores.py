"""What each candidate is worth (Sec. 2.2): s_i = (1/ε̃_i) ∫ ∂L/∂ε_i dε_i by the midpoint rule with n = 3 points.

The gain of a candidate is D_i = -ε̃_i·s_i, the decrease of the loss that it is worth, in the same unit for every kind.
On the joint path all ε move together, so that the gains add up to L(0) - L(ε̃): a free test.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from firefly.neighborhood.overgrown import Epsilon, OverGrown
from firefly.ranks.talk import average
from firefly.stages.losses import Loss, find_slopes, scalar_loss

Gains = dict[str, Tensor]  # D_i, one number a slot, per width


def scaled(epsilon: Epsilon, factor: float) -> Epsilon:
    return {name: value * factor for name, value in epsilon.items()}


def integrate(over: OverGrown, loss: Loss, batches: list[Any], path: str = "joint", points: int = 3) -> Gains:
    """D_i for every candidate of every width, in compact numbering."""
    if path == "joint":
        return _integrate_jointly(over, loss, batches, points)
    gains = {name: torch.zeros_like(epsilon) for name, epsilon in over.epsilon.items()}
    for name, epsilon in over.epsilon.items():
        for i in range(len(epsilon)):
            for z in range(1, points + 1):
                at = {key: value.clone() for key, value in over.epsilon.items()}
                at[name][i] *= (2 * z - 1) / (2 * points)
                slope = _slopes(over, loss, batches, at)[name][i]
                gains[name][i] -= epsilon[i] * slope / points
    return gains


def _integrate_jointly(over: OverGrown, loss: Loss, batches: list[Any], points: int) -> Gains:
    gains = {name: torch.zeros_like(epsilon) for name, epsilon in over.epsilon.items()}
    for z in range(1, points + 1):
        slopes = _slopes(over, loss, batches, scaled(over.epsilon, (2 * z - 1) / (2 * points)))
        for name, epsilon in over.epsilon.items():
            gains[name] -= epsilon * slopes[name] / points
    return gains


def _slopes(over: OverGrown, loss: Loss, batches: list[Any], epsilon: Epsilon) -> Epsilon:
    """∂L/∂ε at this ε, averaged over the batches of all ranks."""
    at = {name: value.detach().clone().requires_grad_() for name, value in epsilon.items()}
    slopes = {name: torch.zeros_like(value) for name, value in epsilon.items()}
    for batch in batches:
        with over.attached(at):
            value = scalar_loss(loss, over.model, batch)
            found = find_slopes(value, at.values())
        for name, slope in zip(at, found):
            if slope is not None:
                slopes[name] += slope / len(batches)
    average(slopes.values())
    return slopes
