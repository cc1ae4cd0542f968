"""OverGrown: the network f_{ε,δ} with every candidate in it (Sec. 2.2), as the user's own forward with larger tensors.

All that step one moves in it are ε and δ. `attached` puts the larger tensors into the model for a while. A reader fed
by the copies of one neuron need not grow: they are summed in front of it (`Folding`), which halves the cost of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from firefly.anatomy.examples import run_examples
from firefly.anatomy.widths import Anatomy
from firefly.errors import FireflyError
from firefly.neighborhood import births
from firefly.neighborhood.ball import Balls
from firefly.neighborhood.folding import Folding, find_folds
from firefly.neighborhood.kinds import Kind
from firefly.neighborhood.slots import list_slots
from firefly.neighborhood.starts import draw_delta, measure_scales
from firefly.surgery.norms import STATISTICS, average_statistics
from firefly.surgery.swap import clone_buffers, find_owner, find_tensor, swapped, switched
from firefly.tensors import Plan, along_runs, carry, coefficient, folded, gather, make_plan, move

Epsilon = dict[str, Tensor]  # one number a slot, per width
Delta = dict[str, Tensor]  # one row or column a slot, per tensor


@dataclass(frozen=True)
class Directions:
    """What step one finds: δ for every tensor, and ε for every candidate."""

    delta: Delta
    epsilon: Epsilon
    turned: bool = False  # brand-new neurons are others now than those whose statistics were measured


class OverGrown:
    """f_{ε,δ}: `epsilon[width]` and `delta[tensor]` in compact numbering (existing neurons, then new candidates)."""

    def __init__(
        self,
        model: nn.Module,
        anatomy: Anatomy,
        widths: Sequence[str],
        kinds: Sequence[Kind],
        generator: torch.Generator,
        fold: bool = True,
    ) -> None:
        self.model, self.anatomy, self.kinds = model, anatomy, tuple(kinds)
        offered = {name: list_slots(anatomy[name], kinds) for name in widths}
        self.slots = {name: slots for name, slots in offered.items() if slots}
        if not self.slots:
            way = "put firefly.New(...) into the neighborhood"
            if any(anatomy[name].dormant for name in widths):
                way = f"dormant layers grow by new neurons only: {way}"
            raise FireflyError(f"no candidate of {', '.join(k.name for k in kinds)} in {', '.join(widths)}: {way}")
        self.device = next(model.parameters()).device
        self.fold = fold and all(slots.even for slots in self.slots.values())
        self.rosters = {name: slots.everyone(self.device) for name, slots in self.slots.items()}
        touched = [lay for lay in anatomy.layouts.values() if any(r.width in self.slots for d in lay.dims for r in d)]
        self.layouts = {layout.name: layout for layout in touched}
        self.base = {name: find_tensor(model, name).detach() for name in self.layouts}
        self.scale, self.reader_scale = measure_scales(self.layouts, self.base, self.slots)
        self.epsilon = {name: slots.epsilon.to(self.device) for name, slots in self.slots.items()}
        self._random = generator, generator.get_state()
        self.delta = {name: self._start(name, generator) for name, lay in self.layouts.items() if lay.free}
        self.births = {n: births.begin(lay, self.base[n]) for n, lay in self.layouts.items() if not lay.free}
        self.balls = Balls(self.layouts, self.delta, self.slots)
        self._prepare()

    def _prepare(self) -> None:
        """The index work and whatever else stays the same while δ moves."""
        once = {name: folded(roster) for name, roster in self.rosters.items()}
        readers = once if self.fold else self.rosters
        self.plans = {n: make_plan(lay, self.rosters, readers, self.device) for n, lay in self.layouts.items()}
        compact = {n: make_plan(self.layouts[n], once, once, self.device) for n in self.delta}
        self.carried = {name: carry(plan, self.base[name]) for name, plan in compact.items()}
        self.sizes = self.anatomy.mirrored({name: len(roster) for name, roster in self.rosters.items()})
        self.folds = {n: find_folds(self.layouts[n], self.slots, self.device) for n in self.delta} if self.fold else {}
        self._factors: tuple[Epsilon | None, dict[str, Tensor | None]] = (None, {})
        self.scratch = clone_buffers(self.model)
        self._fill_scratch()

    def _start(self, name: str, generator: torch.Generator) -> Tensor:
        delta = draw_delta(self.layouts[name], self.base[name], self.slots, self.scale, generator)
        return self._keep_padding(name, delta).requires_grad_()

    @torch.no_grad()
    def _keep_padding(self, name: str, delta: Tensor) -> Tensor:
        """δ without the row that stands for nothing (`padding_idx`): torch gives it no gradient."""
        row = getattr(find_owner(self.model, name), "padding_idx", None)
        if row is not None:
            delta[row] = 0
        return delta

    @torch.no_grad()
    def restart(self) -> None:
        """Put δ, and the buffers that a forward may have written to, back to where they began."""
        generator, state = self._random
        generator.set_state(state)
        for name, delta in self.delta.items():
            delta.copy_(self._start(name, generator))
        for name, buffer in self.model.named_buffers():
            grown = name in self.births
            self.scratch[name].copy_(self.grown(name, self.plans[name], {}) if grown else buffer)

    def turn(self, directions: Directions) -> None:
        """Take what step one has found."""
        self.delta = {name: self._keep_padding(name, delta) for name, delta in directions.delta.items()}
        self.epsilon = dict(directions.epsilon)
        self.check_delta()

    def check_delta(self) -> None:
        """Refuse directions that are not numbers."""
        bad = [name for name, delta in self.delta.items() if not bool(delta.isfinite().all())]
        if bad:
            raise FireflyError(
                f"step one found no finite direction for {bad[0]}: the gradient of the loss is not a number there; "
                "check the loss and the batches"
            )

    # ---- the larger tensors ------------------------------------------------------------------------------------------

    def grown(self, name: str, plan: Plan, epsilon: Mapping[str, Tensor], base: Tensor | None = None) -> Tensor:
        """One tensor of the larger network, for this plan's rosters."""
        base = self.base[name] if base is None else base
        carried = carry(plan, base)
        if name not in self.delta:
            return births.fill(plan, carried, self.births[name])
        return move(carried, plan, self._factor(name, plan, epsilon), self.delta[name]).to(base.dtype)

    def _factor(self, name: str, plan: Plan, epsilon: Mapping[str, Tensor]) -> Tensor | None:
        return coefficient(plan, epsilon, self.scale, self.reader_scale[name], self.delta[name])

    def tensors(self, epsilon: Epsilon | None = None, delta: Delta | None = None) -> dict[str, Tensor]:
        """All tensors that depend on δ, of the over-grown network."""
        if epsilon is None:  # ε stands still while δ moves: the factors are computed once
            if self._factors[0] is not self.epsilon:
                self._factors = (self.epsilon, {n: self._factor(n, self.plans[n], self.epsilon) for n in self.delta})
            factors = self._factors[1]
        else:
            factors = {name: self._factor(name, self.plans[name], epsilon) for name in self.delta}
        delta = self.delta if delta is None else delta
        return {name: self._move(name, factors[name], delta[name]).to(self.base[name].dtype) for name in self.delta}

    def _move(self, name: str, factor: Tensor | None, delta: Tensor) -> Tensor:
        """`carried` is in compact numbering, which takes half the memory of the over-grown tensor."""
        plan = self.plans[name]
        return move(gather(self.carried[name], plan.compact), plan, factor, delta)

    def _fill_scratch(self) -> None:
        """Buffers do not depend on δ: grow them once, into copies that a forward in train mode may write to."""
        self.fixed = {n: self.grown(n, self.plans[n], {}) for n in self.births}
        self.scratch.update({name: tensor for name, tensor in self.fixed.items() if name in self.scratch})

    @contextmanager
    def attached(self, epsilon: Epsilon | None = None, delta: Delta | None = None) -> Iterator[None]:
        """Inside the block the model *is* f_{ε,δ}; its own tensors come back afterwards, untouched."""
        tensors = self.tensors(epsilon, delta)
        folds = {id(tensors[name]): fold for name, fold in self.folds.items() if fold}
        folding = Folding(folds) if folds else nullcontext()  # all calls of torch pass a mode, even one without work
        with swapped(self.model, {**self.scratch, **self.fixed, **tensors}, self.sizes), folding:
            yield

    # ---- newborn statistics ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def measure_births(self, loss: Callable[[nn.Module, Any], Tensor], batches: list[Any]) -> None:
        """Give new neurons the running statistics that they have on these batches."""
        measured = {n for n, lay in self.layouts.items() if n in self.births and lay.start in STATISTICS}
        if not measured or not any(slots.new for slots in self.slots.values()):
            return
        scratch = {name: buffer.clone() for name, buffer in self.scratch.items()}
        with self.attached():
            average_statistics(self.model, loss, batches)
        self.scratch.update(scratch)
        kept = {name: roster.first.float() for name, roster in self.rosters.items()}
        for name in measured:
            first = along_runs(self.layouts[name].dims[0], kept, 1.0, self.fixed[name])
            self.births[name] = self.fixed[name][first > 0]  # in compact numbering
        self._fill_scratch()


def overgrow(
    model: nn.Module, anatomy: Anatomy, widths: Sequence[str], kinds: Sequence[Kind], seed: int, example: Any
) -> OverGrown:
    """The over-grown network; copies are folded in front of their readers where the model lets them."""
    over = OverGrown(model, anatomy, widths, kinds, torch.Generator().manual_seed(seed))
    if not any(over.folds.values()) or _runs(over, example):
        return over
    return OverGrown(model, anatomy, widths, kinds, torch.Generator().manual_seed(seed), fold=False)


@torch.no_grad()
def _runs(over: OverGrown, example: Any) -> bool:
    try:
        with over.attached(), switched(over.model.modules(), False):
            run_examples(over.model, example)
    except RuntimeError:
        return False
    return True
