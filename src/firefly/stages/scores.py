"""Step one and the first half of step two (Sec. 2.2): optimise δ, then measure what each candidate is worth.

    descend    min over δ of L(f_{ε,δ}) with ‖δ‖ ≤ 1, by a few steps of Adam                       (eq. 4)
    integrate  s_i = (1/ε̃_i) ∫ ∂L/∂ε_i dε_i by the midpoint rule with n = 3 points

The gain of a candidate is D_i = -ε̃_i·s_i, the decrease of the loss that it is worth, in the same unit for every kind.
On the joint path all ε move together, so that the gains add up to L(0) - L(ε̃): a free test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from firefly.errors import FireflyError
from firefly.neighborhood.overgrown import Epsilon, OverGrown
from firefly.stages.capturing import Capture, lent_capture

Loss = Callable[[nn.Module, Any], Tensor]
Gains = dict[str, Tensor]


@dataclass(frozen=True)
class Steps:
    """How long step one is; `report(step, steps)` is called after each."""

    count: int
    lr: float
    report: Callable[[int, int], None]


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches over and over; a one-shot iterator is remembered."""
    seen: list[Any] | None = [] if iter(batches) is batches else None
    for batch in batches:
        if seen is not None:
            seen.append(batch)
        yield batch
    while True:
        empty = True
        for batch in batches if seen is None else seen:
            empty = False
            yield batch
        if empty:
            raise FireflyError("the batches can be read only once: pass a list or a DataLoader")


def scalar_loss(loss: Loss, model: nn.Module, batch: Any) -> Tensor:
    """The loss of a batch, checked."""
    value = loss(model, batch)
    if not isinstance(value, Tensor) or value.numel() != 1:
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise FireflyError(f"loss(model, batch) must return a scalar tensor, but returned {what}: take its mean")
    return value.reshape(())


def descend(over: OverGrown, loss: Loss, batches: Iterable[Any], steps: Steps, capture: Capture | None = None) -> None:
    """Step one: let the candidates find their directions, inside the ball.

    Where the loss has risen, on the batches that came first, the steps were too long: begin again with a third of them.
    On a GPU `capture`, or one lent by a training loop, may make a faster step of the plain one (`firefly.training`).
    """
    free = list(over.delta.values())
    capture = (capture or lent_capture()) if free[0].is_cuda else None
    rate = torch.tensor(steps.lr, device=free[0].device) if capture else steps.lr
    optimizer = torch.optim.Adam(free, lr=rate, betas=(0.9, 0.99), foreach=True, capturable=capture is not None)
    place: list[Any] = [None]  # the batch

    def advance() -> Tensor:
        with over.attached():
            value = scalar_loss(loss, over.model, place[0])
            gradients = torch.autograd.grad(value, free, allow_unused=True)
        for delta, gradient in zip(free, gradients):
            delta.grad = gradient
        optimizer.step()
        for delta in free:
            delta.grad = None  # their memory serves the next step
        return value.detach()

    def changed() -> list[Tensor]:
        moments = [value for state in optimizer.state.values() for value in state.values()]
        return [*free, *over.scratch.values(), *moments]

    step_once = capture(advance, changed) if capture else advance
    first: list[tuple[Any, Tensor]] = []  # batches, and their loss close to the start
    lr, since = steps.lr, 0
    for step, batch in enumerate(islice(endless(batches), steps.count)):
        _set_rate(optimizer, lr * (1 - step / steps.count))
        place[0] = _overwrite(place[0], batch) if capture else batch
        value = step_once()
        first += [(batch, value.clone())] if len(first) < 4 else []
        since += 1
        if since % 5 == 0 or step + 1 == steps.count:
            over.project()
        if since in (10, 30, 100) and _rose(over, loss, first):
            lr, since = lr / 3, 0
            _forget(optimizer)
            over.restart()
        steps.report(step + 1, steps.count)


def _set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    group = optimizer.param_groups[0]
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr


def _overwrite(place: Any, batch: Any) -> Any:
    """The batch in the memory of the last one, where a captured step reads it."""
    if place is None:
        return tree_map(lambda part: part.clone() if isinstance(part, Tensor) else part, batch)
    for there, part in zip(tree_leaves(place), tree_leaves(batch), strict=True):
        if isinstance(there, Tensor):
            if there.shape != part.shape:
                shapes = f"{tuple(there.shape)} and {tuple(part.shape)}"
                raise FireflyError(f"batches of shapes {shapes}: a captured step needs all of the same shape")
            there.copy_(part)
    return place


@torch.no_grad()
def _forget(optimizer: torch.optim.Optimizer) -> None:
    """Start the moments anew, in place."""
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()


@torch.no_grad()
def _rose(over: OverGrown, loss: Loss, first: list[tuple[Any, Tensor]]) -> bool:
    with over.attached():
        now = torch.stack([scalar_loss(loss, over.model, batch) for batch, _ in first]).mean().item()
    return not now <= torch.stack([value for _, value in first]).mean().item()


@torch.no_grad()
def mean_loss(over: OverGrown, loss: Loss, batches: list[Any], epsilon: Epsilon | None = None) -> float:
    """L(f_{ε,δ}) on these batches."""
    with over.attached(epsilon):
        return torch.stack([scalar_loss(loss, over.model, batch).detach().double() for batch in batches]).mean().item()


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
    """∂L/∂ε at this ε, averaged over the batches."""
    at = {name: value.detach().clone().requires_grad_() for name, value in epsilon.items()}
    slopes = {name: torch.zeros_like(value) for name, value in epsilon.items()}
    for batch in batches:
        with over.attached(at):
            value = scalar_loss(loss, over.model, batch)
            found = torch.autograd.grad(value, list(at.values()), allow_unused=True)
        for name, slope in zip(at, found):
            if slope is not None:
                slopes[name] += slope / len(batches)
    return slopes
