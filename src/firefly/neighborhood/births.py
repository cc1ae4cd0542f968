"""What brand-new neurons get in tensors that only follow them: one, zero, a mean, or statistics measured on data."""

from __future__ import annotations

import torch
from torch import Tensor

from firefly.tensors import Layout, Plan, gather, per_entry


def begin(layout: Layout, base: Tensor) -> Tensor:
    """The value of new neurons as one number, until it is measured."""
    if layout.start in ("one", "variance of data"):
        return torch.ones((), dtype=base.dtype, device=base.device)
    if layout.start in ("zero", "mean of data"):
        return torch.zeros((), dtype=base.dtype, device=base.device)
    return base.float().mean().to(base.dtype)


def fill(plan: Plan, tensor: Tensor, births: Tensor) -> Tensor:
    """Give the new neurons of a following tensor their values: one number, or one per entry in compact numbering."""
    values = gather(births, plan.compact) if births.ndim else births
    for dim, touched in enumerate(plan.touched):
        if touched:
            born = per_entry(plan, dim, lambda roster, _: roster.born.float(), 0.0, tensor)
            tensor = torch.where(born > 0, values.to(tensor.dtype), tensor)
    return tensor
