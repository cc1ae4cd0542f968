"""The only index arithmetic of the project: larger tensors out of a model's tensors, for every kind of growth at once.

A `Layout` says which entries of a tensor belong to which neurons. A `Roster` says who the neurons of a width are in a
larger network, in *compact* numbering: 0..n-1 are the neurons that exist, n.. the brand-new candidates. A split neuron
stands twice in the roster, with signs +1 and -1. `grow_tensor` evaluates

    rows that make it     split: θ ± ε·s·δ       new: δ
    columns that read it  split: W/2 and W/2     new: ε·r·δ

(Sec. 2.2 of the paper) for any roster: all candidates for the over-grown network, the chosen ones for the commit.
δ is one free tensor per weight, of the compact shape; s is the neuron's own root mean square, r the reader's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Run:
    """A stretch of a dimension: `size` neurons of a width with `block` entries each, or `size` fixed entries."""

    width: str | None
    size: int
    block: int = 1


@dataclass(frozen=True)
class Layout:
    """How the neurons lie in one tensor. Roles per dimension: makes, reads, follows or None."""

    name: str
    dims: tuple[tuple[Run, ...], ...]
    roles: tuple[str | None, ...]
    start: str = "random"  # what a new neuron gets in a tensor that follows it
    parameter: bool = True

    def role(self, role: str) -> int | None:
        return self.roles.index(role) if role in self.roles else None

    @property
    def free(self) -> bool:
        """Whether new or split neurons choose their own entries here."""
        return "makes" in self.roles or "reads" in self.roles


@dataclass(frozen=True)
class Roster:
    """The neurons of one width in a larger network; `new` of its candidates are brand new."""

    size: int  # n, the neurons that exist
    new: int  # m', the brand-new candidates
    parent: Tensor  # (n',) compact number of each
    sign: Tensor  # (n',) +1 and -1 for the copies of a split neuron, else 0
    stretches: tuple[tuple[int, int], ...] | None = None  # `parent` as (first, count), where it is that regular

    def __len__(self) -> int:
        return len(self.parent)

    @property
    def born(self) -> Tensor:
        return self.parent >= self.size


def everyone(size: int, new: int, split: bool, device: torch.device | str = "cpu") -> Roster:
    """All candidates: every neuron (twice if it splits), then every new one."""
    roster = chosen(torch.arange(size if split else 0), torch.arange(new), size, new, device)
    return replace(roster, stretches=((0, size), (0, size), (size, new)) if split else ((0, size + new),))


def chosen(split: Tensor, new: Tensor, size: int, total_new: int, device: torch.device | str = "cpu") -> Roster:
    """The neurons that exist, then a copy of each in `split`, then the new ones of those numbers."""
    parent = torch.cat([torch.arange(size), split, size + new])
    sign = torch.zeros(len(parent))
    sign[split] = 1.0
    sign[size : size + len(split)] = -1.0
    return Roster(size, total_new, parent.to(device), sign.to(device))


def folded(roster: Roster) -> Roster:
    """The roster as a reader sees it when every pair has been summed before it: one column a neuron."""
    kept = roster.sign >= 0
    whole = ((0, roster.size + roster.new),) if roster.stretches is not None else None
    return Roster(roster.size, roster.new, roster.parent[kept], roster.sign[kept], whole)


Rosters = Mapping[str, Roster]


def spread(runs: tuple[Run, ...], of: Callable[[str], Tensor], fill: float, like: Tensor) -> Tensor:
    """One value per entry of a grown dimension, from one value per neuron of each width."""
    pieces = []
    for run in runs:
        if run.width is None:
            pieces.append(torch.full((run.size * run.block,), fill, dtype=like.dtype, device=like.device))
        else:
            value = of(run.width).to(like.dtype)
            pieces.append(value.repeat_interleave(run.block) if run.block > 1 else value)
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


Places = Tensor | tuple[tuple[int, int], ...] | None  # entry numbers, or stretches of them, or all as they are


def entries(runs: tuple[Run, ...], rosters: Rosters, compact: bool) -> Places:
    """Where each entry of a grown dimension comes from: its place in the compact or in the present tensor.

    In the present tensor a new neuron has no place and points at entry 0; `born` tells them apart.
    """
    grown = [rosters.get(run.width) if run.width else None for run in runs]
    if compact and all(roster is None or roster.stretches is not None for roster in grown):
        return _stretches(runs, grown)
    pieces, offset = [], 0
    for run, roster in zip(runs, grown):
        if roster is None:
            pieces.append(torch.arange(offset, offset + run.size * run.block))
            offset += run.size * run.block
            continue
        parent = roster.parent.cpu()
        if not compact:
            parent = torch.where(parent < roster.size, parent, 0)
        pieces.append((offset + parent[:, None] * run.block + torch.arange(run.block)).flatten())
        offset += (roster.size + (roster.new if compact else 0)) * run.block
    return torch.cat(pieces)


def _stretches(runs: tuple[Run, ...], grown: list[Roster | None]) -> Places:
    found: list[tuple[int, int]] = []
    offset = 0
    for run, roster in zip(runs, grown):
        count = run.size + (roster.new if roster is not None else 0)
        for first, many in (roster.stretches or ()) if roster is not None else ((0, run.size),):
            start, long = offset + first * run.block, many * run.block
            if found and sum(found[-1]) == start:
                found[-1] = (found[-1][0], found[-1][1] + long)
            elif long:
                found.append((start, long))
        offset += count * run.block
    return None if not offset or found == [(0, offset)] else tuple(found)


def new_in(run: Run, rosters: Rosters | None) -> int:
    """How many brand-new candidates the run's width has."""
    return rosters[run.width].new if rosters and run.width is not None and run.width in rosters else 0


def compact_shape(layout: Layout, rosters: Rosters) -> list[int]:
    """The tensor's shape with every candidate of its widths in it once."""
    return [sum((run.size + new_in(run, rosters)) * run.block for run in runs) for runs in layout.dims]


@dataclass(frozen=True)
class Plan:
    """The index work for one tensor and one set of rosters, done once and used at every step."""

    layout: Layout
    rosters: tuple[Rosters, ...]  # per dimension: a folded reader sees another roster than the maker
    touched: tuple[bool, ...]
    present: tuple[Places, ...]
    compact: tuple[Places, ...]


def make_plan(layout: Layout, makers: Rosters, readers: Rosters, device: torch.device | str) -> Plan:
    rosters = tuple(readers if role == "reads" else makers for role in layout.roles)
    touched = tuple(any(run.width in makers for run in runs) for runs in layout.dims)

    def find(compact: bool) -> tuple[Places, ...]:
        found = (entries(r, mine, compact) if t else None for r, mine, t in zip(layout.dims, rosters, touched))
        return tuple(where.to(device) if isinstance(where, Tensor) else where for where in found)

    return Plan(layout, rosters, touched, find(compact=False), find(compact=True))


def gather(tensor: Tensor, index: tuple[Places, ...]) -> Tensor:
    for dim, where in enumerate(index):
        if isinstance(where, Tensor) and not tensor.shape[dim]:  # a width of no neurons: all that grows there is new
            tensor = tensor.new_zeros([len(where) if d == dim else n for d, n in enumerate(tensor.shape)])
        elif isinstance(where, Tensor):
            tensor = tensor.index_select(dim, where)
        elif where is not None:
            tensor = torch.cat([tensor.narrow(dim, first, count) for first, count in where], dim)
    return tensor


def along(vector: Tensor, dim: int, ndim: int) -> Tensor:
    """A vector shaped to broadcast along one dimension."""
    return vector.view([-1 if d == dim else 1 for d in range(ndim)])


def per_entry(plan: Plan, dim: int, of: Callable[[Roster, str], Tensor], fill: float, like: Tensor) -> Tensor:
    """A vector along `dim` from a value per neuron; neurons of widths that do not grow count as `fill`."""

    def value(width: str) -> Tensor:
        if width in plan.rosters[dim]:
            return of(plan.rosters[dim][width], width)
        size = next(run.size for run in plan.layout.dims[dim] if run.width == width)
        return torch.full((size,), fill, device=like.device)

    return along(spread(plan.layout.dims[dim], value, fill, like), dim, like.ndim)


def carry(plan: Plan, tensor: Tensor, halve: str | None = "reads", power: float = 1.0) -> Tensor:
    """The present entries in their new places, zero for new neurons; split ones are halved where `halve` says.

    Weights halve the columns that read a split neuron. An optimiser's state behaves like the gradient: the rows that
    make the neuron get half of it (`halve="makes"`, and `power=2` for squares).
    """
    out = gather(tensor, plan.present)
    for dim, role in enumerate(plan.layout.roles):
        if not plan.touched[dim]:
            continue
        halved = 0.5**power if (role if role != "follows" else "makes") == halve else 1.0

        def keep(roster: Roster, _: str, halved: float = halved) -> Tensor:
            return torch.where(roster.born, 0.0, torch.where(roster.sign != 0, halved, 1.0))

        out = out * per_entry(plan, dim, keep, 1.0, out)
    return out


def coefficient(
    plan: Plan, epsilon: Mapping[str, Tensor], scale: Mapping[str, Tensor], reader_scale: Tensor | float, like: Tensor
) -> Tensor | None:
    """What δ is multiplied with (module docstring). epsilon, scale: per width, in compact numbering."""
    make, read = plan.layout.role("makes"), plan.layout.role("reads")
    out: Tensor | None = None
    if make is not None and plan.touched[make]:

        def rows(roster: Roster, width: str) -> Tensor:
            strength = roster.sign * epsilon[width][roster.parent] * scale[width][roster.parent]
            return torch.where(roster.born, scale[width][roster.parent], strength)

        out = per_entry(plan, make, rows, 0.0, like)
    if read is not None and plan.touched[read]:

        def old(roster: Roster, _: str) -> Tensor:  # like the weights: halved where both copies are read
            return torch.where(roster.born, 0.0, torch.where(roster.sign != 0, 0.5, 1.0)).to(like.dtype)

        def columns(roster: Roster, width: str) -> Tensor:
            return torch.where(roster.born, epsilon[width][roster.parent] * reader_scale, 0.0)

        column = per_entry(plan, read, columns, 0.0, like)
        out = column if out is None else out * per_entry(plan, read, old, 1.0, like) + column
    return out


def move(carried: Tensor, plan: Plan, factor: Tensor | None, delta: Tensor) -> Tensor:
    """The tensor of the larger network: what it carries over, and δ times its coefficient."""
    return carried if factor is None else torch.addcmul(carried.to(delta.dtype), factor, gather(delta, plan.compact))
