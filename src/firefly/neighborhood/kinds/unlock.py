"""Unlocking locked neurons (Sec. 2.4): a copy θ + εδ takes the neuron's place, the original stays and is read no more.

In continual learning the original serves the tasks that learnt it; the copy belongs to the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from firefly.anatomy.widths import Width
from firefly.errors import FireflyError
from firefly.neighborhood.kinds.kind import Copy, Kind


@dataclass(frozen=True, eq=False)
class Unlock(Kind):
    """Every locked neuron may get a copy that is free to move: the copy is read with W, the original with 0.

    Args:
        epsilon: how far the copy may go, as a share of the neuron's own size.
        locked: {width: a boolean per neuron}, which ones are locked; None for all of them.
    """

    name: ClassVar[str] = "unlock"
    becomes: ClassVar[tuple[Copy, ...]] = (Copy(0, 0.0), Copy(+1, 1.0))
    epsilon: float = 0.3
    locked: Mapping[str, Tensor] | None = None

    def __post_init__(self) -> None:
        known = self.locked is None or isinstance(self.locked, Mapping)
        self.check(known, f"locked={self.locked!r:.60}", "give {width: a boolean per neuron}, or None for all neurons")
        super().__post_init__()

    def find_existing(self, width: Width) -> Tensor:
        if self.locked is None:
            return torch.ones(width.size, dtype=torch.bool)
        found = torch.as_tensor(self.locked.get(width.name, torch.zeros(width.size)), device="cpu").bool()
        if found.shape != (width.size,):
            raise FireflyError(
                f"Unlock(locked=...): width {width.name!r} has {width.size} neurons, but locked has shape "
                f"{tuple(found.shape)} there: give one boolean per neuron"
            )
        return found
