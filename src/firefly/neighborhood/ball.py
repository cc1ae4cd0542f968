"""The constraint of step one: ‖δ‖ ≤ 1 (as a root mean square) for every candidate (eq. 3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from firefly.neighborhood.slots import Slots
from firefly.tensors import Layout, Run, along, along_runs, sum_neurons


class Part(NamedTuple):
    """A part of the balls: the entries of one tensor that count, along the dimension of their candidates."""

    tensor: str
    dim: int
    runs: tuple[Run, ...]
    inside: Tensor  # 1 for the entries that count, broadcast


class Balls:
    """The ball of every candidate: the rows that make it, or the columns that read it, as its kind says."""

    def __init__(self, layouts: Mapping[str, Layout], delta: Mapping[str, Tensor], slots: Mapping[str, Slots]) -> None:
        self.slots = slots
        self.parts = [part for name, one in delta.items() for part in _find_parts(layouts[name], one, slots)]
        self.counts = self._sum({name: torch.ones_like(one) for name, one in delta.items()})

    @torch.no_grad()
    def project(self, delta: Mapping[str, Tensor]) -> None:
        """Shorten, in place, what is too long."""
        squares = self._sum({name: one.square() for name, one in delta.items()})
        shrink = {n: (self.counts[n] / s.clamp(min=1e-20)).sqrt().clamp(max=1.0) for n, s in squares.items()}
        for name, dim, runs, inside in self.parts:
            factor = along(along_runs(runs, shrink, 1.0, delta[name]), dim, delta[name].ndim)
            delta[name].mul_(torch.lerp(torch.ones_like(factor), factor, inside))

    def _sum(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sum per candidate over the entries in its ball."""
        device = next(iter(values.values())).device
        totals = {name: torch.zeros(len(one), device=device) for name, one in self.slots.items()}
        for name, dim, runs, inside in self.parts:
            for width, per_candidate in sum_neurons(runs, values[name] * inside, dim, self.slots).items():
                if width in totals:
                    totals[width] += per_candidate
        return totals


def _find_parts(layout: Layout, delta: Tensor, slots: Mapping[str, Slots]) -> Iterator[Part]:
    """Rows read neurons that exist; columns are those of the candidates that have their ball there."""
    make, read = layout.role("makes"), layout.role("reads")
    old = torch.ones([1] * delta.ndim, dtype=delta.dtype, device=delta.device)
    if read is not None:
        columns = _where(slots, "columns")
        if any(bool(one.any()) for one in columns.values()):
            vector = along_runs(layout.dims[read], columns, 0.0, delta)
            yield Part(layout.name, read, layout.dims[read], along(vector, read, delta.ndim))
        exist = {name: (torch.arange(len(one)) < one.size).float() for name, one in slots.items()}
        old = along(along_runs(layout.dims[read], exist, 1.0, delta), read, delta.ndim)
    rows = _where(slots, "rows")
    if make is not None and any(bool(one.any()) for one in rows.values()):
        vector = along_runs(layout.dims[make], rows, 1.0, delta)
        yield Part(layout.name, make, layout.dims[make], old * along(vector, make, delta.ndim))


def _where(slots: Mapping[str, Slots], side: str) -> dict[str, Tensor]:
    return {name: one.spread({k: float(k.ball == side) for k in one.standing}) for name, one in slots.items()}
