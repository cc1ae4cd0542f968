"""What older tasks own stays what it is: after every step of the optimiser it is put back, bit for bit (Sec. 2.4).

So neither gradients nor weight decay nor momentum can move it. The hook is part of the optimiser's step, hence of the
captured one, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


class Held(NamedTuple):
    """A parameter, which of its entries are free, and what the others are."""

    parameter: Tensor
    free: Tensor  # of booleans; may be broadcast
    kept: Tensor


@torch.no_grad()
def put_back(held: list[Held]) -> None:
    for parameter, free, kept in held:
        torch.where(free, parameter, kept, out=parameter)


def is_still(held: Held) -> bool:
    """Whether the entries that are not free are what they should be."""
    return torch.equal(torch.where(held.free, held.kept, held.parameter.detach()), held.kept)


def lock(optimizer: Optimizer, held: list[Held]) -> RemovableHandle:
    """From now on every step of the optimiser leaves the entries that are not free as they are."""
    held = [Held(one.parameter, one.free.to(one.parameter.device), one.kept.to(one.parameter)) for one in held]
    put_back(held)

    def hook(*_: Any) -> None:
        put_back(held)

    return optimizer.register_step_post_hook(hook)
