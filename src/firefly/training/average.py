"""A moving average of a model's weights and buffers: a twin that follows at a distance, step by step."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from firefly.errors import FireflyError, first_line


@dataclass(frozen=True, eq=False)
class Pairs:
    """The tensors of a model and of its average: those that are averaged, and those that are copied."""

    own: list[Tensor]
    averaged: list[Tensor]
    counted: list[tuple[Tensor, Tensor]]  # whole numbers, such as the steps that a norm has seen


def make_average(model: nn.Module) -> nn.Module:
    """The twin, as the model is now."""
    try:
        return copy.deepcopy(model)
    except Exception as error:  # whatever a module of the user's may raise
        raise FireflyError(f"ema needs a copy of the model, which cannot be copied: {first_line(error)}") from error


def pair(model: nn.Module, average: nn.Module) -> Pairs:
    """Tensor by tensor, in the order of the modules."""
    both = [[*one.parameters(), *one.buffers()] for one in (model, average)]
    shapes = [[tensor.shape for tensor in tensors] for tensors in both]
    if shapes[0] != shapes[1]:
        raise FireflyError("the model has changed and its average has not: a grower must grow the models in `also` too")
    couples = list(zip(*(map(torch.Tensor.detach, tensors) for tensors in both)))
    smooth = [(own, mean) for own, mean in couples if own.is_floating_point() or own.is_complex()]
    counted = [couple for couple in couples if not (couple[0].is_floating_point() or couple[0].is_complex())]
    return Pairs([own for own, _ in smooth], [mean for _, mean in smooth], counted)


@torch.no_grad()
def follow(pairs: Pairs, weight: Tensor) -> None:
    """The average moves towards the model by this share of the way; `weight` is a tensor, for a captured step."""
    way = torch._foreach_sub(pairs.own, pairs.averaged)
    torch._foreach_mul_(way, weight)
    torch._foreach_add_(pairs.averaged, way)


@torch.no_grad()
def copy_counters(pairs: Pairs) -> None:
    for own, copied in pairs.counted:
        copied.copy_(own)


def list_weights(decay: float, epoch: int, steps: int) -> list[float]:
    """The share of the way for each step of an epoch: 1 - decay, and more at first, where the weights move fast."""
    first = epoch * steps
    return [1 - min(decay, (1 + step) / (10 + step)) for step in range(first, first + steps)]
