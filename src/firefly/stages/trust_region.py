"""The trust region of a growth: build f_{ε,δ}, and shorten the step wherever the loss would rise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from firefly.anatomy.examples import run_examples
from firefly.anatomy.widths import Anatomy
from firefly.errors import FireflyError
from firefly.neighborhood.kinds import New, Split
from firefly.neighborhood.overgrown import Epsilon, OverGrown
from firefly.stages.commit import evaluate
from firefly.stages.scores import Loss, mean_loss, scalar_loss, scaled
from firefly.surgery.norms import adopt_statistics, average_statistics
from firefly.surgery.swap import swapped, switched


@torch.no_grad()
def loss_of(
    model: nn.Module,
    loss: Loss,
    held: list[Any],
    seed: int,
    tensors: Mapping[str, Tensor] | None = None,
    sizes: Any = (),
) -> float:
    """The mean loss, of the model as it is or with grown tensors in it; buffers are written to copies."""
    torch.manual_seed(seed)
    copies = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    with swapped(model, {**copies, **{n: t.clone() for n, t in (tensors or {}).items()}}, sizes):
        values = [scalar_loss(loss, model, batch).detach().double() for batch in held]
    value = torch.stack(values).mean().item()
    if tensors is None and not math.isfinite(value):
        raise FireflyError(f"the loss on the first {len(held)} batches is {value}: growth needs a finite one")
    return value


def overgrow(
    model: nn.Module, anatomy: Anatomy, names: list[str], split: Split | None, new: New | None, seed: int, example: Any
) -> OverGrown:
    """The over-grown network; pairs are folded in front of their readers where the model lets them."""
    for fold in (True, False):
        generator = torch.Generator().manual_seed(seed)
        over = OverGrown(model, anatomy, names, split, new, generator, fold=fold)
        if not fold or split is None or _runs(over, example):
            return over
    raise AssertionError("unreachable")


@torch.no_grad()
def _runs(over: OverGrown, example: Any) -> bool:
    try:
        with over.attached(), switched(over.model.modules(), False):
            run_examples(over.model, example)
    except RuntimeError:
        return False
    return True


def shorten(
    over: OverGrown, loss: Loss, held: list[Any], before: float, seed: int, shorten: bool
) -> tuple[float, float]:
    """L(ε̃); while it is not below L(0), take half of the step."""
    factor = 1.0
    for _ in range(12):
        torch.manual_seed(seed)
        value = mean_loss(over, loss, held)
        if value < before or not shorten:
            break
        factor /= 2
        over.epsilon = scaled(over.epsilon, 0.5)
    if not math.isfinite(value):
        raise FireflyError(f"the loss of the over-grown network is {value}: check the batches, or lower the epsilon")
    return value, factor


def settle(
    over: OverGrown,
    plans: Any,
    sizes: Mapping[str, int],
    epsilon: Epsilon,
    loss: Loss,
    held: list[Any],
    before: float,
    seed: int,
) -> tuple[dict[str, Tensor], float, float]:
    """The grown tensors; while the grown network is worse than the present one, take half of the step."""
    sized = over.anatomy.mirrored(sizes)
    factor = 1.0
    for _ in range(12):
        tensors = evaluate(over, plans, scaled(epsilon, factor))
        after = loss_of(over.model, loss, held, seed, tensors, sized)
        if after <= before:
            break
        factor /= 2
    if over.model.training:  # in eval mode the statistics are part of the function that was optimised
        own = {name: buffer.detach().clone() for name, buffer in over.model.named_buffers()}
        grown = {name: tensor.clone() for name, tensor in tensors.items()}
        with swapped(over.model, own):
            average_statistics(over.model, loss, held)
        with swapped(over.model, {**{n: b.clone() for n, b in own.items()}, **grown}, sized):
            average_statistics(over.model, loss, held)
        adopt_statistics(plans, tensors, own, grown)
    return tensors, after, factor


@torch.no_grad()
def output_change(model: nn.Module, example: Any, tensors: Mapping[str, Tensor], sizes: Any) -> float:
    copies = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    with switched(model.modules(), False):
        with swapped(model, copies):
            before = run_examples(model, example)
        with swapped(model, {**copies, **tensors}, sizes):
            after = run_examples(model, example)
    pairs = [(a, b) for a, b in zip(before, after) if a.is_floating_point() and a.numel()]
    return max(((a - b).abs().max().item() for a, b in pairs), default=0.0)
