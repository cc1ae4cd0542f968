"""Running statistics of batch and instance norms for neurons that are new or have moved apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from firefly.ranks.talk import average
from firefly.surgery.guard import interruptible
from firefly.surgery.swap import exchanged, switched
from firefly.tensors import Plan, carry, per_entry

STATISTICS = ("mean of data", "variance of data")


@torch.no_grad()
def average_statistics(model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], batches: list[Any]) -> None:
    """Set the running statistics of every norm to their plain average over the batches of all ranks.

    Dropout and stochastic depth are off meanwhile: two measurements are to differ by what was grown, not by chance.
    """
    norms = [module for module in model.modules() if tracks(module)]
    before = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]
    try:
        _measure(norms, model, loss, batches)
    except ValueError as error:
        if "more than 1 value" not in str(error):
            raise
        for buffer, value in before:  # one is frozen, as one does for batches of one: all statistics stay
            buffer.copy_(value)


def tracks(module: nn.Module) -> bool:
    """Whether it is a norm with running statistics."""
    return bool(getattr(module, "track_running_stats", False)) and hasattr(module, "reset_running_stats")


def _measure(norms: list[Any], model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], batches: list[Any]) -> None:
    momenta = [(norm, "momentum", norm.momentum) for norm in norms]
    with switched(list_plain(model), False), switched(norms, True), exchanged(momenta):
        for k, batch in enumerate(batches):
            for norm in norms:
                if k == 0:
                    norm.reset_running_stats()  # a NaN there would survive any average
                norm.momentum = 1 / (k + 1)
            loss(model, batch)
    average(t for norm in norms for t in (norm.running_mean, norm.running_var) if t is not None)


class Unsynced(nn.SyncBatchNorm):
    """As a SyncBatchNorm, but of this rank's samples only."""

    forward = nn.BatchNorm1d.forward


def unsynced(model: nn.Module) -> interruptible:
    """Inside the block no norm talks to other ranks: what is only looked at is looked at on one."""
    return exchanged((one, "__class__", Unsynced) for one in model.modules() if type(one) is nn.SyncBatchNorm)


def list_plain(model: nn.Module) -> list[nn.Module]:
    """The modules that hold nothing: activations, dropout. What a model returns does not hang on their mode."""
    plain = (m for m in model.modules() if not any(True for _ in m.children()) and not m._parameters and not m._buffers)
    return [module for module in plain if module is not model]


def adopt_statistics(
    plans: Mapping[str, Plan], tensors: dict[str, Tensor], before: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> None:
    """Give new neurons the statistics measured after the growth, and those that moved the change from before to after.

    A running average is not the average over a few batches, so that only the difference that the move makes counts.
    """
    for name, plan in plans.items():
        if plan.layout.start in STATISTICS:
            own, parent = tensors[name], carry(plan, before[name])
            mean = plan.layout.start == STATISTICS[0]
            moved = own + after[name] - parent if mean else own * after[name] / parent.clamp(min=1e-12)
            apart = per_entry(plan, 0, lambda roster, _: (roster.move != 0).float(), 0.0, own)
            born = per_entry(plan, 0, lambda roster, _: roster.born.float(), 0.0, own)
            tensors[name] = torch.where(born > 0, after[name], torch.where(apart > 0, moved, own))
