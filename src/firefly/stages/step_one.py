"""Step one (Sec. 2.2): min over δ of L(f_{ε,δ}) with ‖δ‖ ≤ 1, by a few steps of Adam (eq. 4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from firefly.errors import FireflyError
from firefly.neighborhood.overgrown import Directions, OverGrown
from firefly.ranks.talk import average, count_ranks
from firefly.stages.batches import endless
from firefly.stages.capturing import Capture, lent_capture
from firefly.stages.losses import Loss, find_slopes, mean_loss, scalar_loss

CHECKS = (10, 30, 100)  # steps after which the loss is compared with that of the start


@dataclass(frozen=True)
class Steps:
    """How long step one is; `report(step, steps)` is called after each."""

    count: int
    lr: float
    report: Callable[[int, int], None]


def descend(
    over: OverGrown, loss: Loss, batches: Iterable[Any], steps: Steps, capture: Capture | None = None
) -> Directions:
    """Step one: let the candidates find their directions, inside the ball.

    Where the loss has risen, on the batches that came first, the steps were too long: begin again with a third of them.
    On a GPU `capture`, or one lent by a training loop, may make a faster step of the plain one (`firefly.training`).
    """
    free = list(over.delta.values())
    capture = (capture or lent_capture()) if free[0].is_cuda and count_ranks() == 1 else None
    rate = torch.tensor(steps.lr, device=free[0].device) if capture else steps.lr
    optimizer = torch.optim.Adam(free, lr=rate, betas=(0.9, 0.99), foreach=True, capturable=capture is not None)
    place: list[Any] = [None]  # the batch

    def advance() -> Tensor:
        with over.attached():
            value = scalar_loss(loss, over.model, place[0])
            found = find_slopes(value, free)
        value, gradients = _join(value.detach(), found, free)
        fine = value.isfinite()  # one bad batch shall not spoil the rest
        for delta, gradient in zip(free, gradients):
            delta.grad = None if gradient is None else torch.where(fine, gradient, 0.0)
        optimizer.step()
        for delta in free:
            delta.grad = None  # their memory serves the next step
        return value

    def changed() -> list[Tensor]:
        moments = [value for state in optimizer.state.values() for value in state.values()]
        return [*free, *over.scratch.values(), *moments]

    step_once = capture(advance, changed) if capture else advance
    first: list[tuple[Any, float]] = []  # batches, and their loss close to the start
    lr, since = steps.lr, 0
    for step, batch in enumerate(islice(endless(batches), steps.count)):
        _set_rate(optimizer, lr * (1 - step / steps.count))
        place[0] = _overwrite(place[0], batch) if capture else batch
        value = step_once()
        if len(first) < 4 and math.isfinite(value.item()):
            first.append((batch, value.item()))
        since += 1
        if since % 5 == 0 or step + 1 == steps.count:
            over.balls.project(over.delta)
        if since in CHECKS and _has_risen(over, loss, first):
            lr, since = lr / 3, 0
            _forget(optimizer)
            over.restart()
        steps.report(step + 1, steps.count)
    return Directions(over.delta, over.epsilon)


def _join(value: Tensor, gradients: Sequence[Tensor | None], free: list[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
    """The loss and the gradients of a step that all ranks take together, each with a batch of its own."""
    if count_ranks() == 1:
        return value, list(gradients)
    whole = [torch.zeros_like(delta) if found is None else found.contiguous() for delta, found in zip(free, gradients)]
    value = value.to(whole[0].dtype)
    average([value, *whole])
    return value, [*whole]


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
def _has_risen(over: OverGrown, loss: Loss, first: list[tuple[Any, float]]) -> bool:
    """Whether the loss is above what it was at the start, on the batches that came first."""
    over.check_delta()
    if not first:
        return False
    with over.attached():
        now = mean_loss(loss, over.model, [batch for batch, _ in first])
    return not now <= sum(value for _, value in first) / len(first)
