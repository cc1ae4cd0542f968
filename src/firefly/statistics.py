"""Running statistics of batch and instance norms for neurons that are new or have moved apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from firefly.swap import switched
from firefly.tensors import Plan, per_entry

STATISTICS = ("mean of data", "variance of data")


@torch.no_grad()
def average_statistics(model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], batches: list[Any]) -> None:
    """Set the running statistics of every norm to their plain average over the batches."""
    norms: list[Any] = [module for module in model.modules() if getattr(module, "track_running_stats", False)]
    momenta = [(norm, norm.momentum) for norm in norms]
    try:
        with switched(norms, True):
            for k, batch in enumerate(batches):
                for norm in norms:
                    norm.momentum = 1 / (k + 1)
                loss(model, batch)
    finally:
        for norm, momentum in momenta:
            norm.momentum = momentum


def adopt_statistics(plans: Mapping[str, Plan], tensors: dict[str, Tensor], measured: Mapping[str, Tensor]) -> None:
    """Take the measured statistics for split and new neurons; all others keep theirs."""
    for name, plan in plans.items():
        if plan.layout.start in STATISTICS:
            moved = per_entry(plan, 0, lambda r, _: (r.born | (r.sign != 0)).float(), 0.0, tensors[name])
            tensors[name] = torch.where(moved > 0, measured[name], tensors[name])
