"""Splitting existing neurons (Sec. 2.2): θ becomes θ + εδ and θ - εδ, each read with half of the columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from firefly.anatomy.widths import Width
from firefly.neighborhood.kinds.kind import Copy, Kind


@dataclass(frozen=True)
class Split(Kind):
    """Every neuron may become two halves that move apart: θ ± ε·δ, their readers W/2 and W/2.

    Args:
        epsilon: how far, as a share of the neuron's own size.
    """

    name: ClassVar[str] = "split"
    becomes: ClassVar[tuple[Copy, ...]] = (Copy(+1, 0.5), Copy(-1, 0.5))
    epsilon: float = 0.3

    def find_existing(self, width: Width) -> Tensor:
        return torch.ones(width.size, dtype=torch.bool)

    def start_rows(self, scale: Tensor) -> Tensor:
        """Small and random: a split is even in δ, so at zero its gradient vanishes."""
        return torch.full_like(scale, 0.1)
