"""The only index arithmetic of the project: larger tensors out of a model's tensors, for every kind of growth at once.

A `Layout` says which entries of a tensor belong to which neurons. The candidates of a width stand in *slots*: the first
n are the neurons that exist, those behind are brand new. A `Roster` says who the neurons of a larger network are: the
slot each comes from, how its rows follow δ (`move`), and what share of its slot's columns it keeps (`share`).

    a width of 3 neurons, Split() and New(2)      slots 0 1 2 | 3 4
    over-grown, all candidates in it              slot  0 1 2 0 1 2 3 4    move + + + - - - 0 0    share ½ ½ ½ ½ ½ ½ 0 0
    committed, neuron 1 split and slot 4 new      slot  0 1 2 1 4          move 0 + 0 - 0          share 1 ½ 1 ½ 0
    committed, neuron 1 unlocked instead          slot  0 1 2 1            move 0 0 0 +            share 1 0 1 1

For any roster (Sec. 2.2 of the paper) the tensors of the larger network are

    rows that make a neuron      θ + move·ε·s·δ       brand new: s·δ
    columns that read it         share·W              brand new: ε·r·δ

δ is one free tensor per weight with a row or column for every slot (the *compact* shape: 5 rows in the example); s is
the neuron's own root mean square, r the reader's. `make_plan` does the index work once, `carry` moves what is there to
its new places, `coefficient` is what δ is multiplied with, and `move` adds the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass

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
    """The neurons of one width in a larger network; the first n are those of the slots 0..n-1."""

    size: int  # n, the neurons that exist
    new: int  # m', the slots of brand-new candidates
    slot: Tensor  # (n',) which slot each comes from
    move: Tensor  # (n',) how its rows follow ε·δ; 0 for those that stay or are brand new
    share: Tensor  # (n',) what of its slot's columns it keeps; 0 for brand-new ones
    stretches: tuple[tuple[int, int], ...] | None = None  # `slot` as (first, count), where it is that regular

    def __len__(self) -> int:
        return len(self.slot)

    @property
    def born(self) -> Tensor:
        """Which of them are brand new."""
        return self.slot >= self.size

    @property
    def first(self) -> Tensor:
        """Which of them are the only one, or the first one, of their slot."""
        return self.born | (torch.arange(len(self), device=self.slot.device) < self.size)


def double(numbers: Tensor, size: int, device: torch.device | str = "cpu") -> Roster:
    """Neurons give half of their columns to a copy whenever their number is named; halves are exact."""
    slot = torch.cat([torch.arange(size), numbers])
    share = torch.ones(len(slot))
    for place, number in enumerate(numbers.tolist(), size):
        share[number] /= 2
        share[place] = share[number]
    return Roster(size, 0, slot.to(device), torch.zeros(len(slot), device=device), share.to(device))


def folded(roster: Roster) -> Roster:
    """The roster as a reader sees it when the copies of a slot have been summed before it: one column a slot."""
    kept = roster.first
    whole = ((0, roster.size + roster.new),) if roster.stretches is not None else None
    return Roster(roster.size, roster.new, roster.slot[kept], roster.move[kept], roster.share[kept], whole)


Rosters = Mapping[str, Roster]


def along_runs(runs: tuple[Run, ...], values: Mapping[str, Tensor], fill: float, like: Tensor) -> Tensor:
    """One value per entry of a dimension, from one value per neuron (or slot) of each width; `fill` for all others."""
    pieces = []
    for run in runs:
        if run.width is None or run.width not in values:
            pieces.append(torch.full((run.size * run.block,), fill, dtype=like.dtype, device=like.device))
        else:
            value = values[run.width].to(like)
            pieces.append(value.repeat_interleave(run.block) if run.block > 1 else value)
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def sum_neurons(
    runs: tuple[Run, ...], value: Tensor, dim: int, slots: Mapping[str, Sized] | None = None
) -> dict[str, Tensor]:
    """Sum a tensor per neuron along `dim`; with slots the dimension is in compact numbering."""
    entries = value.transpose(0, dim).flatten(1).sum(1) if value.ndim > 1 else value
    found: dict[str, Tensor] = {}
    offset = 0
    for run in runs:
        size = count_slots(run, slots or {})
        stretch = entries[offset : offset + size * run.block].view(size, run.block).sum(1)
        offset += size * run.block
        if run.width is not None:
            found[run.width] = found[run.width] + stretch if run.width in found else stretch
    return found


def count_slots(run: Run, slots: Mapping[str, Sized]) -> int:
    """How many slots the run's width has, or its entries if it has none."""
    return len(slots[run.width]) if run.width is not None and run.width in slots else run.size


def compact_shape(layout: Layout, slots: Mapping[str, Sized]) -> list[int]:
    """The tensor's shape with every slot of its widths in it once."""
    return [sum(count_slots(run, slots) * run.block for run in runs) for runs in layout.dims]


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
        slot = roster.slot.cpu()
        if not compact:
            slot = torch.where(slot < roster.size, slot, 0)
        pieces.append((offset + slot[:, None] * run.block + torch.arange(run.block)).flatten())
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
    runs, rosters = plan.layout.dims[dim], plan.rosters[dim]
    grown = {run.width: rosters[run.width] for run in runs if run.width is not None and run.width in rosters}
    values = {width: of(roster, width) for width, roster in grown.items()}
    return along(along_runs(runs, values, fill, like), dim, like.ndim)


def carry(plan: Plan, tensor: Tensor, shared: str | None = "reads", power: float = 1.0) -> Tensor:
    """The present entries in their new places, zero for new neurons; copies get their share on the side `shared` names.

    Weights share the columns that read a neuron. An optimiser's state behaves like the gradient: the rows that make the
    neuron get that share of it (`shared="makes"`, and `power=2` for squares).
    """
    out = gather(tensor, plan.present)
    for dim, role in enumerate(plan.layout.roles):
        if not plan.touched[dim]:
            continue
        here = (role if role != "follows" else "makes") == shared

        def keep(roster: Roster, _: str, here: bool = here) -> Tensor:
            return roster.share**power if here else (~roster.born).float()

        out = out * per_entry(plan, dim, keep, 1.0, out)
    return out


def coefficient(
    plan: Plan, epsilon: Mapping[str, Tensor], scale: Mapping[str, Tensor], reader_scale: Tensor | float, like: Tensor
) -> Tensor | None:
    """What δ is multiplied with (module docstring). epsilon, scale: per width, one number a slot."""
    make, read = plan.layout.role("makes"), plan.layout.role("reads")
    out: Tensor | None = None
    if make is not None and plan.touched[make]:

        def rows(roster: Roster, width: str) -> Tensor:
            strength = roster.move * epsilon[width][roster.slot] * scale[width][roster.slot]
            return torch.where(roster.born, scale[width][roster.slot], strength)

        out = per_entry(plan, make, rows, 0.0, like)
    if read is not None and plan.touched[read]:

        def old(roster: Roster, _: str) -> Tensor:  # like the weights
            return roster.share.to(like.dtype)

        def columns(roster: Roster, width: str) -> Tensor:
            return torch.where(roster.born, epsilon[width][roster.slot] * reader_scale, 0.0)

        column = per_entry(plan, read, columns, 0.0, like)
        out = column if out is None else out * per_entry(plan, read, old, 1.0, like) + column
    return out


def move(carried: Tensor, plan: Plan, factor: Tensor | None, delta: Tensor) -> Tensor:
    """The tensor of the larger network: what it carries over, and δ times its coefficient."""
    return carried if factor is None else torch.addcmul(carried.to(delta.dtype), factor, gather(delta, plan.compact))
