"""OverGrown: the network f_{ε,δ} with every candidate in it (Sec. 2.2), as the user's own forward with larger tensors.

It owns ε and δ and nothing else. `attached` puts the larger tensors into the model for a while. A reader fed by pairs
of split copies need not grow: the pair is summed in front of it (`Folding`), which halves the cost of a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from firefly.anatomy.widths import Anatomy
from firefly.errors import FireflyError
from firefly.neighborhood.folding import Folding
from firefly.neighborhood.kinds import New, Split
from firefly.surgery.norms import STATISTICS, average_statistics
from firefly.surgery.swap import find_tensor, swapped
from firefly.tensors import (
    Layout,
    Plan,
    Roster,
    Rosters,
    Run,
    along,
    carry,
    chosen,
    coefficient,
    compact_shape,
    everyone,
    folded,
    gather,
    make_plan,
    move,
    new_in,
    per_entry,
    spread,
)

Epsilon = dict[str, Tensor]


class OverGrown:
    """f_{ε,δ}: `epsilon[width]` and `delta[tensor]` in compact numbering (existing neurons, then new candidates)."""

    def __init__(
        self,
        model: nn.Module,
        anatomy: Anatomy,
        widths: list[str],
        split: Split | None,
        new: New | None,
        generator: torch.Generator,
        fold: bool = True,
    ) -> None:
        self.model, self.anatomy, self.split, self.new, self.fold = model, anatomy, split, new, fold
        device = next(model.parameters()).device
        self.rosters = {
            name: everyone(
                anatomy[name].size, new.candidates(anatomy[name].block) if new else 0, split is not None, device
            )
            for name in widths
            if anatomy[name].size or new  # a dormant layer has nothing to split
        }
        if not self.rosters:
            raise FireflyError("dormant layers grow by new neurons only: put firefly.New(...) into the neighborhood")
        touched = [lay for lay in anatomy.layouts.values() if any(r.width in self.rosters for d in lay.dims for r in d)]
        self.layouts = {layout.name: layout for layout in touched}
        self.base = {name: find_tensor(model, name).detach() for name in self.layouts}
        self.scale, self.reader_scale = self._measure_scales()
        self.epsilon = {name: self._radius(roster) for name, roster in self.rosters.items()}
        self._random = generator, generator.get_state()
        self.delta = {name: self._start(lay, generator) for name, lay in self.layouts.items() if lay.free}
        self.births = {name: self._births(layout) for name, layout in self.layouts.items() if not layout.free}
        self.plans = self._make_plans(self.rosters, self.fold)
        once = {name: folded(roster) for name, roster in self.rosters.items()}
        self.carried = {n: carry(make_plan(self.layouts[n], once, once, device), self.base[n]) for n in self.delta}
        self.sizes = anatomy.mirrored({name: len(roster) for name, roster in self.rosters.items()})
        self.folds = {name: self._fold_of(name) for name in self.delta} if self.fold else {}
        self._factors: tuple[Epsilon | None, dict[str, Tensor | None]] = (None, {})
        self.scratch = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        self._fill_scratch()

    # ---- starting values ---------------------------------------------------------------------------------------------

    def _measure_scales(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Root mean square of each neuron's own rows, in compact numbering, and of each reader as a whole."""
        squares = {name: torch.zeros(r.size, device=r.parent.device) for name, r in self.rosters.items()}
        counts = dict.fromkeys(self.rosters, 0)
        readers: dict[str, Tensor] = {}
        for name, layout in self.layouts.items():
            tensor = self.base[name].float()
            readers[name] = _rms(tensor)
            make = layout.role("makes")
            if make is not None:
                for width, per_neuron in sum_neurons(layout.dims[make], tensor.square(), make).items():
                    if width in squares:
                        squares[width] += per_neuron
                        rest = math.prod(n for dim, n in enumerate(tensor.shape) if dim != make)
                        counts[width] += rest * _owned(layout.dims[make], width)
        scale = {}
        for width, roster in self.rosters.items():
            own = (squares[width] / max(counts[width], 1)).sqrt()
            mean = own.mean() if roster.size else torch.tensor(max(counts[width], 1) ** -0.5, device=own.device)
            mean = torch.where(mean > 0, mean, torch.full_like(mean, 0.1))
            own = torch.where(own > 0, own, mean)
            scale[width] = torch.cat([own, mean.expand(roster.new)])
        return scale, readers

    def _radius(self, roster: Roster) -> Tensor:
        split = torch.full((roster.size,), self.split.epsilon if self.split else 0.0)
        new = torch.full((roster.new,), self.new.epsilon if self.new else 0.0)
        return torch.cat([split, new]).to(roster.parent.device)

    def _start(self, layout: Layout, generator: torch.Generator) -> Tensor:
        """δ at the start: small and random for splits, random for the rows of new neurons, zero for their columns.

        So f begins within a hair of f_t; splits cannot begin at zero, where their gradient vanishes.
        """
        base = self.base[layout.name]
        dtype = base.dtype if base.dtype == torch.float64 else torch.float32
        delta = torch.randn(compact_shape(layout, self.rosters), generator=generator, dtype=dtype).to(base.device)
        read, make = layout.role("reads"), layout.role("makes")
        if read is not None:
            delta *= along(self._compact(layout.dims[read], _old, delta), read, delta.ndim)
        wanted = None if self.new is None else self.new.scale
        if make is not None and layout.start == "zero" and wanted is None:  # a bias: new neurons start without one
            delta *= along(self._compact(layout.dims[make], _old, delta), make, delta.ndim)
        return self.size_rows(layout, delta, split=0.1).requires_grad_()

    def size_rows(self, layout: Layout, delta: Tensor, split: float) -> Tensor:
        """Random δ with its rows as large as they begin: `split` for splits, what `New.scale` says for new neurons."""
        make, wanted = layout.role("makes"), None if self.new is None else self.new.scale
        if make is None:
            return delta
        size = {
            name: torch.where(_old(r) > 0, split, 1.0 if wanted is None else wanted / self.scale[name])
            for name, r in self.rosters.items()
        }
        return delta * along(self._per_entry(layout.dims[make], size, delta), make, delta.ndim)

    @torch.no_grad()
    def restart(self) -> None:
        """Put δ back to where it began."""
        generator, state = self._random
        generator.set_state(state)
        for name, delta in self.delta.items():
            delta.copy_(self._start(self.layouts[name], generator))

    def _compact(self, runs: tuple[Run, ...], of: Callable[[Roster], Tensor], like: Tensor) -> Tensor:
        def value(width: str) -> Tensor:
            size = next(run.size for run in runs if run.width == width)
            return of(self.rosters[width]) if width in self.rosters else torch.ones(size, device=like.device)

        return spread(runs, value, 1.0, like)

    def _births(self, layout: Layout) -> Tensor:
        """What new neurons get in a tensor that only follows them, as one number to begin with."""
        base = self.base[layout.name]
        if layout.start in ("one", "variance of data"):
            return torch.ones((), dtype=base.dtype, device=base.device)
        if layout.start in ("zero", "mean of data"):
            return torch.zeros((), dtype=base.dtype, device=base.device)
        return base.float().mean().to(base.dtype)

    # ---- the larger tensors ------------------------------------------------------------------------------------------

    def _make_plans(self, rosters: Rosters, fold: bool) -> dict[str, Plan]:
        readers = {name: folded(roster) for name, roster in rosters.items()} if fold else rosters
        return {n: make_plan(lay, rosters, readers, self.base[n].device) for n, lay in self.layouts.items()}

    def grown(self, name: str, plan: Plan, epsilon: Mapping[str, Tensor], base: Tensor | None = None) -> Tensor:
        """One tensor of the larger network, for this plan's rosters."""
        base = self.base[name] if base is None else base
        carried = carry(plan, base)
        if name not in self.delta:
            return fill_births(plan, carried, self.births[name])
        return move(carried, plan, self._factor(name, plan, epsilon), self.delta[name]).to(base.dtype)

    def _factor(self, name: str, plan: Plan, epsilon: Mapping[str, Tensor]) -> Tensor | None:
        return coefficient(plan, epsilon, self.scale, self.reader_scale[name], self.delta[name])

    def tensors(self, epsilon: Epsilon | None = None) -> dict[str, Tensor]:
        """All tensors that depend on δ, of the over-grown network."""
        if epsilon is None:  # ε stands still while δ moves: the factors are computed once
            if self._factors[0] is not self.epsilon:
                self._factors = (self.epsilon, {n: self._factor(n, self.plans[n], self.epsilon) for n in self.delta})
            factors = self._factors[1]
        else:
            factors = {name: self._factor(name, self.plans[name], epsilon) for name in self.delta}
        return {
            name: self._move(name, factors[name], delta).to(self.base[name].dtype) for name, delta in self.delta.items()
        }

    def _move(self, name: str, factor: Tensor | None, delta: Tensor) -> Tensor:
        """`carried` is in compact numbering, which takes half the memory of the over-grown tensor."""
        plan = self.plans[name]
        return move(gather(self.carried[name], plan.compact), plan, factor, delta)

    def _fill_scratch(self) -> None:
        """Buffers do not depend on δ: grow them once, into copies that a forward in train mode may write to."""
        self.fixed = {n: self.grown(n, self.plans[n], {}) for n in self.births}
        self.scratch.update({name: tensor for name, tensor in self.fixed.items() if name in self.scratch})

    @contextmanager
    def attached(self, epsilon: Epsilon | None = None) -> Iterator[None]:
        """Inside the block the model *is* f_{ε,δ}; its own tensors come back afterwards, untouched."""
        tensors = self.tensors(epsilon)
        folding = Folding({id(tensors[name]): fold for name, fold in self.folds.items()})
        with swapped(self.model, {**self.scratch, **self.fixed, **tensors}, self.sizes), folding:
            yield

    def _fold_of(self, name: str) -> list[tuple[int, int, int]] | None:
        layout = self.layouts[name]
        read = layout.role("reads")
        if read is None or self.split is None:
            return None
        return [
            (run.size * run.block, run.size * run.block, self.rosters[run.width].new * run.block)
            if run.width in self.rosters
            else (run.size * run.block, 0, 0)
            for run in layout.dims[read]
        ]

    # ---- the constraints ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def project(self) -> None:
        """‖δ‖ ≤ 1 (as a root mean square) for every candidate: split rows, columns that read a new neuron (eq. 3)."""
        if not hasattr(self, "_balls"):
            self._balls = list(self._constrained())
            ones = {name: torch.ones_like(delta) for name, delta in self.delta.items()}
            self._counts = self._sum_balls(ones)
        squares = self._sum_balls({name: delta.square() for name, delta in self.delta.items()})
        shrink = {n: (self._counts[n] / s.clamp(min=1e-20)).sqrt().clamp(max=1.0) for n, s in squares.items()}
        for name, dim, runs, inside in self._balls:
            factor = along(self._per_entry(runs, shrink, self.delta[name]), dim, self.delta[name].ndim)
            self.delta[name] *= torch.lerp(torch.ones_like(factor), factor, inside)

    def _sum_balls(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sum per candidate over the entries that its ball holds."""
        totals = {name: torch.zeros_like(epsilon) for name, epsilon in self.epsilon.items()}
        for name, dim, runs, inside in self._balls:
            for width, per_neuron in sum_neurons(runs, values[name] * inside, dim, self.rosters).items():
                if width in totals:
                    totals[width] += per_neuron
        return totals

    def _constrained(self) -> Iterator[tuple[str, int, tuple[Run, ...], Tensor]]:
        """(tensor, dimension, its runs, which entries count): split rows read old neurons, new columns are read."""
        for name, delta in self.delta.items():
            layout = self.layouts[name]
            make, read = layout.role("makes"), layout.role("reads")
            old = torch.ones([1] * delta.ndim, dtype=delta.dtype, device=delta.device)
            if read is not None:
                old = along(self._compact(layout.dims[read], _old, delta), read, delta.ndim)
                if self.new is not None:
                    yield name, read, layout.dims[read], 1 - old
            if make is not None and self.split is not None:
                yield (
                    name,
                    make,
                    layout.dims[make],
                    old * along(self._compact(layout.dims[make], _old, delta), make, delta.ndim),
                )

    def _per_entry(self, runs: tuple[Run, ...], values: Mapping[str, Tensor], like: Tensor) -> Tensor:
        def value(width: str) -> Tensor:
            size = next(run.size for run in runs if run.width == width)
            return values[width] if width in values else torch.ones(size, device=like.device)

        return spread(runs, value, 1.0, like)

    # ---- newborn statistics ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def measure_births(self, loss: Callable[[nn.Module, Any], Tensor], batches: list[Any]) -> None:
        """Give new neurons the running statistics that they have on these batches."""
        measured = {n for n, lay in self.layouts.items() if n in self.births and lay.start in STATISTICS}
        if not measured or self.new is None:
            return
        scratch = {name: buffer.clone() for name, buffer in self.scratch.items()}
        with self.attached():
            average_statistics(self.model, loss, batches)
        self.scratch.update(scratch)
        for name in measured:
            kept = spread(self.layouts[name].dims[0], self._kept, 1.0, self.fixed[name])
            self.births[name] = self.fixed[name][kept > 0]  # in compact numbering
        self._fill_scratch()

    def _kept(self, width: str) -> Tensor:
        if width in self.rosters:
            return (self.rosters[width].sign >= 0).float()
        return torch.ones(self.anatomy[width].size, device=next(iter(self.epsilon.values())).device)


def fill_births(plan: Plan, tensor: Tensor, births: Tensor) -> Tensor:
    """Give the new neurons of a following tensor their values: one number, or one per entry in compact numbering."""
    values = gather(births, plan.compact) if births.ndim else births
    for dim, touched in enumerate(plan.touched):
        if touched:
            born = per_entry(plan, dim, lambda roster, _: roster.born.float(), 0.0, tensor)
            tensor = torch.where(born > 0, values, tensor)
    return tensor


def _old(roster: Roster) -> Tensor:
    return torch.cat([torch.ones(roster.size), torch.zeros(roster.new)]).to(roster.parent.device)


def _rms(tensor: Tensor) -> Tensor:
    """Root mean square of a weight; where it is zero or empty, that of a fresh one: 1/√fan-in.

    The fan-in of a weight that reads a width of no neurons is taken to be as large as what it makes: one neuron of a
    new layer then moves the stream it is added to by as large a share as one more neuron moves the next layer.
    """
    fresh = torch.tensor((math.prod(tensor.shape[1:]) or tensor.shape[0] or 1) ** -0.5, device=tensor.device)
    rms = tensor.square().mean().sqrt() if tensor.numel() else fresh
    return torch.where(rms > 0, rms, fresh)


def _owned(runs: tuple[Run, ...], width: str) -> int:
    return sum(run.block for run in runs if run.width == width)


def sum_neurons(runs: tuple[Run, ...], value: Tensor, dim: int, rosters: Rosters | None = None) -> dict[str, Tensor]:
    """Sum a tensor per neuron along `dim`; with rosters the dimension is in compact numbering."""
    per_entry = value.transpose(0, dim).flatten(1).sum(1) if value.ndim > 1 else value
    found: dict[str, Tensor] = {}
    offset = 0
    for run in runs:
        size = run.size + new_in(run, rosters)
        stretch = per_entry[offset : offset + size * run.block].view(size, run.block).sum(1)
        offset += size * run.block
        if run.width is not None:
            found[run.width] = found[run.width] + stretch if run.width in found else stretch
    return found


def subset(over: OverGrown, split: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> dict[str, Roster]:
    """The rosters with the chosen candidates only: their numbers per width."""
    none = torch.empty(0, dtype=torch.long)
    return {
        name: chosen(split.get(name, none), new.get(name, none), roster.size, roster.new, roster.parent.device)
        for name, roster in over.rosters.items()
    }
