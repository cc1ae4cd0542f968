"""GradMax (Evci et al. 2022): new neurons whose first gradient is as large as it can be; nothing else changes at birth.

A new neuron with outgoing weights of zero leaves the network's function alone, and its outgoing weights begin with the
gradient A(w) = E[∂L/∂z · h(w)], where w are its incoming weights, h its output and z what its readers make. The w of
the usual length with the largest ‖A(w)‖ are looked for, orthogonal to each other within a width. For a neuron without
an activation A is a matrix, and the best w are its singular vectors: the original method, with the two sides of the
neuron swapped, since weights of zero in front of a batch norm in train mode are no small weights.

No matrix is formed. With outgoing weights t·u, t → 0, the gradient of w is t·∂⟨u, A(w)⟩/∂w: with one plain backward
pass for A and one for its derivative, all neurons of all widths climb log ‖A(w)‖ at once. Without an activation that is
the orthogonal (subspace) iteration for the singular vectors. GradMax is younger than the Firefly paper: it stands
beside the baselines of Sec. 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from firefly.errors import FireflyError
from firefly.method import Method
from firefly.neighborhood.kinds import New
from firefly.neighborhood.overgrown import Directions, OverGrown
from firefly.neighborhood.slots import Slots
from firefly.ranks.talk import average
from firefly.stages.losses import Loss, find_slopes, scalar_loss
from firefly.stages.scores import Gains
from firefly.stages.step_one import Steps
from firefly.surgery.swap import switched
from firefly.tensors import Run, along, count_slots

Tensors = dict[str, Tensor]  # named and shaped like δ
Slopes = Callable[[Tensors], Tensors]  # ∂L/∂δ at a δ
Matrices = dict[str, Tensor]  # per width, one row per new neuron: all that makes it, or all that reads it


def gradmax(iterations: int = 10, batches: int = 8, rate: float = 0.01) -> Method:
    """GradMax as a method for `firefly.grow`; it only adds new neurons, at most `firefly.New(count)` for each width.

    Args:
        iterations: steps uphill, each two passes over the batches.
        batches: how many of the first batches the gradients are averaged over.
        rate: the gain of a neuron is the decrease of the loss by a first gradient step of this learning rate.
    """
    for name, value in (("iterations", iterations), ("batches", batches), ("rate", rate)):
        if not value > 0:
            raise FireflyError(f"gradmax({name}={value!r}): must be above 0")
    return Method(
        name="gradmax",
        descend=partial(find_directions, iterations=iterations, count=batches),
        score=partial(score_gradients, rate=rate),
        trust=False,
        neighborhood=(New(),),
    )


def find_directions(
    over: OverGrown, loss: Loss, batches: Iterable[Any], steps: Steps, *, iterations: int, count: int
) -> Directions:
    """Instead of step one: the incoming weights with the largest gradients behind them, best first; outgoing zero."""
    if any(kind.becomes for kind in over.kinds):
        raise FireflyError(
            "gradmax only adds new neurons: pass neighborhood=[firefly.New(count)], without firefly.Split"
        )
    held = list(islice(batches, count))
    makes, reads = find_places(over, "makes"), find_places(over, "reads")
    start = {width: rows for width, rows in read(makes, over.delta).items() if any(s.width == width for s in reads)}
    found = {width: Newborn.begin(rows) for width, rows in start.items()}
    norms = [module for module in over.model.modules() if getattr(module, "track_running_stats", False)]
    with switched(norms, True):  # the statistics of a new neuron turn with it
        best = climb(over, partial(differentiate, over, loss, held), makes, reads, found, iterations, steps.report)
    kept = {name: _keep(over.slots[name], best.get(name)) for name in over.slots}
    epsilon = {name: own * kept[name].to(own) for name, own in over.epsilon.items()}
    return Directions(write(over, makes, lengthen(makes, best)), epsilon, turned=True)


def score_gradients(over: OverGrown, loss: Loss, batches: list[Any], path: str, *, rate: float) -> Gains:
    """D_i = rate·‖∂L/∂W_i‖² for the outgoing weights W_i: what a first gradient step takes from the loss."""
    pulls = read(find_places(over, "reads"), differentiate(over, loss, batches, over.delta))
    gains = {name: torch.zeros_like(epsilon) for name, epsilon in over.epsilon.items()}
    for width, pull in pulls.items():
        strength = pull.norm(dim=1)
        nothing = torch.finfo(strength.dtype).eps ** 0.5 * strength.max()  # beyond the rank of a linear neuron's matrix
        gains[width][over.slots[width].size :] = rate * torch.where(strength > nothing, strength, 0.0).square()
    return gains


# ---- the climb -------------------------------------------------------------------------------------------------------


def climb(
    over: OverGrown,
    slopes_at: Slopes,
    makes: Places,
    reads: Places,
    found: dict[str, Newborn],
    iterations: int,
    report: Callable[[int, int], None],
) -> dict[str, Newborn]:
    """Steps uphill from here, and the best place that each width came by."""
    best = found
    for k in range(iterations + 1):
        pulls = read(reads, slopes_at(write(over, makes, lengthen(makes, found))))
        found = {width: newborn.ranked(pulls[width]) for width, newborn in found.items()}
        best = {width: now.or_better(best[width]) for width, now in found.items()}
        if k < iterations:
            slopes = differentiate_pull(over, slopes_at, makes, reads, found)
            found = {width: newborn.turned(slopes[width]) for width, newborn in found.items()}
            report(k + 1, iterations)
    return best


@dataclass(frozen=True)
class Newborn:
    """The new neurons of one width on their way uphill, best first."""

    rows: Tensor  # (n, D) unit incoming weights, orthogonal to each other
    pull: Tensor  # (n, D') gradient of the outgoing weights
    step: Tensor  # (n, D) the last turn of the rows
    pace: Tensor  # (n, 1) up to 1; shorter where a turn went too far

    @classmethod
    def begin(cls, rows: Tensor) -> Newborn:
        rows = orthonormalise(rows[: rows.shape[1]])  # there are no more directions than weights
        return cls(rows, torch.zeros_like(rows), torch.zeros_like(rows), torch.ones_like(rows[:, :1]))

    def ranked(self, pull: Tensor) -> Newborn:
        """With this pull measured, in the order of its strength."""
        pull = pull[: len(self.rows)]
        order = pull.norm(dim=1).argsort(descending=True, stable=True)
        return Newborn(self.rows[order], pull[order], self.step[order], self.pace[order])

    def turned(self, slope: Tensor) -> Newborn:
        """A step along the sphere, at most 45°; slope: of log ‖pull‖.

        At pace 1 and without an activation this is the power iteration.
        """
        tangent = slope - (slope * self.rows).sum(1, keepdim=True) * self.rows
        back = (tangent * self.step).sum(1, keepdim=True) < 0
        pace = torch.where(back, 0.5 * self.pace, (1.2 * self.pace).clamp(max=1))
        step = pace * tangent / (pace * tangent.norm(dim=1, keepdim=True)).clamp(min=1)
        return Newborn(orthonormalise(self.rows + step), self.pull, step, pace)

    def or_better(self, before: Newborn) -> Newborn:
        """The earlier place, if it was clearly better."""
        return before if before.pull.norm() > 1.001 * self.pull.norm() else self


def orthonormalise(rows: Tensor) -> Tensor:
    """Gram-Schmidt from the first row on; no row changes its sign."""
    q, r = torch.linalg.qr(rows.T.double())
    return (q * torch.where(r.diagonal() < 0, -1.0, 1.0)).T.to(rows.dtype).contiguous()


def differentiate(over: OverGrown, loss: Loss, batches: list[Any], delta: Tensors) -> Tensors:
    """∂L/∂δ at this δ with ε = 1, averaged over the batches of all ranks."""
    unit = {name: torch.ones_like(epsilon) for name, epsilon in over.epsilon.items()}
    free = {name: value.detach().requires_grad_() for name, value in delta.items()}
    total = {name: torch.zeros_like(value) for name, value in delta.items()}
    for batch in batches:
        with over.attached(unit, free):
            value = scalar_loss(loss, over.model, batch)
            found = find_slopes(value, free.values())
        for name, slope in zip(total, found):
            if slope is not None:
                total[name] += slope / len(batches)
    average(total.values())
    return total


def differentiate_pull(
    over: OverGrown, slopes_at: Slopes, makes: Places, reads: Places, found: Mapping[str, Newborn]
) -> Matrices:
    """The slope of log ‖pull‖ in the unit rows: outgoing weights of t·pull/‖pull‖ give incoming ones t·∂‖pull‖/∂w."""
    shorts, aims, out = {}, {}, {}
    for width, usual in usual_lengths(reads).items():
        if width in found:
            shorts[width] = torch.finfo(found[width].pull.dtype).eps ** 0.5 * usual  # t
            aims[width] = shorts[width] * F.normalize(found[width].pull, eps=1e-30)
    rows, columns = write(over, makes, lengthen(makes, found)), write(over, reads, aims)
    slopes = read(makes, slopes_at({name: rows[name] + columns[name] for name in rows}))
    lengths = usual_lengths(makes)
    for width, newborn in found.items():
        strength = newborn.pull.norm(dim=1, keepdim=True).clamp(min=1e-30)
        out[width] = slopes[width][: len(newborn.rows)] * (lengths[width] / shorts[width]) / strength
    return out


# ---- where the weights of new neurons lie ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """The entries of one tensor that make, or read, the new neurons of a width from, or to, neurons that exist."""

    tensor: str
    width: str
    dim: int
    index: tuple[Tensor, ...]  # one per dimension, each along its own
    count: int  # new neurons
    unit: Tensor  # what δ is multiplied with

    @property
    def shape(self) -> list[int]:
        """With the neurons' dimension first."""
        sizes = [len(where.flatten()) for where in self.index]
        return [sizes.pop(self.dim), *sizes]


Places = list[Place]


def find_places(over: OverGrown, role: str) -> Places:
    """All places of a role: makes or reads."""
    places = []
    for name, delta in over.delta.items():
        layout = over.layouts[name]
        dim = layout.role(role)
        if dim is None:
            continue
        where = [torch.cat([old for old, _ in _entries(over, runs)]) for runs in layout.dims]
        for run, (_, new) in zip(layout.dims[dim], _entries(over, layout.dims[dim])):
            if run.width is not None and len(new):
                where[dim] = new
                index = tuple(along(entries, d, delta.ndim).to(delta.device) for d, entries in enumerate(where))
                unit = over.scale[run.width][-1] if role == "makes" else over.reader_scale[name]
                places.append(Place(name, run.width, dim, index, over.slots[run.width].new, unit))
    return places


def _entries(over: OverGrown, runs: tuple[Run, ...]) -> list[tuple[Tensor, Tensor]]:
    """Of every run, the entries of the neurons that exist and those of the new ones, in compact numbering."""
    found, offset = [], 0
    for run in runs:
        first, end = offset + run.size * run.block, offset + count_slots(run, over.slots) * run.block
        found.append((torch.arange(offset, first), torch.arange(first, end)))
        offset = end
    return found


def read(places: Places, slopes: Tensors) -> Matrices:
    """∂L/∂w for the weights in these places, from ∂L/∂δ."""
    pieces: dict[str, list[Tensor]] = {}
    for place in places:
        entries = slopes[place.tensor].detach()[place.index].movedim(place.dim, 0)
        pieces.setdefault(place.width, []).append((entries / place.unit).reshape(place.count, -1))
    return {width: torch.cat(parts, 1) for width, parts in pieces.items()}


def write(over: OverGrown, places: Places, weights: Matrices) -> Tensors:
    """δ with these weights in these places, and zero elsewhere."""
    out = {name: torch.zeros_like(delta, requires_grad=False) for name, delta in over.delta.items()}
    used = dict.fromkeys(weights, 0)
    for place in places:
        if place.width in weights:
            size = math.prod(place.shape) // place.count
            part = weights[place.width][:, used[place.width] : used[place.width] + size] / place.unit
            part = F.pad(part, (0, 0, 0, place.count - len(part)))
            out[place.tensor][place.index] = part.reshape(place.shape).movedim(0, place.dim)
            used[place.width] += size
    return out


def usual_lengths(places: Places) -> dict[str, Tensor]:
    """How long the weights in these places would be, were they like those of the neurons that exist."""
    squares: dict[str, Tensor] = {}
    for place in places:
        square = place.unit**2 * math.prod(place.shape) / place.count
        squares[place.width] = squares.get(place.width, torch.zeros_like(square)) + square
    return {width: square.sqrt() for width, square in squares.items()}


def lengthen(makes: Places, found: Mapping[str, Newborn]) -> Matrices:
    """Incoming weights as long as those of the neurons that exist."""
    usual = usual_lengths(makes)
    return {width: usual[width] * newborn.rows for width, newborn in found.items()}


def _keep(slots: Slots, newborn: Newborn | None) -> Tensor:
    """1 for the neurons that stand for election."""
    kept = torch.zeros(len(slots))
    kept[slots.size :][: 0 if newborn is None else len(newborn.rows)] = 1
    return kept
