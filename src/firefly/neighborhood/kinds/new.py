"""Brand-new neurons (Sec. 2.2): rows δ, columns ε·u, so that ε on the outgoing side decides how strong they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from firefly.anatomy.widths import Width
from firefly.neighborhood.kinds.kind import Kind

LEAST, MOST = 4, 50  # rows of brand-new candidates in a width, where the user does not say how many


@dataclass(frozen=True)
class New(Kind):
    """Brand-new neurons in every width.

    Args:
        count: how many candidates (m' in the paper); None for half as many as the width has neurons, 4 to 50.
        epsilon: the strength of their outgoing weights, as a share of those that are there.
        scale: the standard deviation of their first incoming weights; None takes that of the neurons that are there.
    """

    name: ClassVar[str] = "new"
    ball: ClassVar[str] = "columns"
    count: int | None = None
    epsilon: float = 0.3
    scale: float | None = None

    def __post_init__(self) -> None:
        whole = self.count is None or (type(self.count) is int and self.count >= 1)
        self.check(whole, f"count={self.count!r}", "needs a whole number of at least 1; leave New out for none")
        super().__post_init__()
        wanted = self.scale is None or (type(self.scale) in (int, float) and 0 < self.scale < math.inf)
        self.check(wanted, f"scale={self.scale!r}", "the standard deviation must be a number above 0")

    def count_new(self, width: Width) -> int:
        """A neuron that owns several rows, such as an attention head, counts as its rows."""
        rows = width.size * width.block
        count = min(max(rows // 2, LEAST), MOST) if self.count is None else self.count
        return max(1, count // width.block)

    def start_rows(self, scale: Tensor) -> Tensor:
        return torch.ones_like(scale) if self.scale is None else self.scale / scale

    def start_bias(self) -> bool:
        return self.scale is not None
