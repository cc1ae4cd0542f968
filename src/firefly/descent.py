"""Firefly neural architecture descent: Algorithm 1 of the paper.

    1. optimise the parameters of f_t           (the user's own training loop)
    2. minimise L over the neighbourhood        `descend` on the over-grown network f_{ε,δ}
    3. keep the top η_t candidates              `integrate`, `select`, `commit`

`grow` is one architecture descent step; `Firefly` remembers the model, the schedule and the history.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from firefly.anatomy.examples import bring
from firefly.anatomy.tracing import check_model, trace
from firefly.anatomy.widths import Anatomy, length
from firefly.growth import Growth
from firefly.neighborhood.kinds import Kind, New, Split, read_neighborhood
from firefly.neighborhood.overgrown import Epsilon, OverGrown
from firefly.schedule import Every, Schedule
from firefly.stages.batches import Clock, Widths, check_options, hold_batches, pick_widths, progress_line, undisturbed
from firefly.stages.budget import Budget, Chosen, Neurons, select
from firefly.stages.commit import commit, evaluate, plan_commit
from firefly.stages.optimizer import check_optimizer
from firefly.stages.scores import Gains, Loss, Steps, descend, integrate, scaled
from firefly.stages.trust_region import loss_of, output_change, overgrow, settle, shorten
from firefly.surgery.residual import find_dormant


@dataclass(frozen=True)
class Method:
    """The stages of a growth that other methods replace (`firefly.baselines`)."""

    name: str = "firefly"
    descend: Callable[[OverGrown, Loss, Iterable[Any], Steps], None] = descend
    score: Callable[[OverGrown, Loss, list[Any], str], Gains] = integrate
    select: Callable[..., Chosen] = select
    trust: bool = True  # shorten the step where the loss would rise


def grow(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Any],
    *,
    example: Any,
    neighborhood: Iterable[Kind] = (Split(), New(50)),
    budget: Budget = Neurons(fraction=0.3),  # noqa: B008
    optimizer: torch.optim.Optimizer | None = None,
    widths: Widths = None,
    seed: int = 0,
    steps: int = 100,
    lr: float = 0.02,
    evaluate_on: int = 8,
    rank: str = "decrease",
    path: str = "joint",
    also: Iterable[nn.Module] = (),
    anatomy: Anatomy | None = None,
    method: Method = Method(),  # noqa: B008
    progress: bool = False,
    preview: bool = False,
) -> Growth:
    """Grow a model where more neurons lower the loss most, in place, with its optimiser.

    Args:
        model: any `nn.Module`; it stays the same object of the same class.
        loss: `loss(model, batch)` -> scalar tensor.
        batches: an iterable of batches, as `loss` takes them.
        example: what the model's forward takes: a tensor, a tuple of arguments, or a dict of keyword arguments.
        neighborhood: the kinds of growth: `Split(...)`, `New(...)`, or both.
        budget: how much to add: `Neurons`, `Parameters`, `Flops`, joined with `&`.
        optimizer: grown along, the same object; its state follows the neurons.
        widths: names, or a filter `width -> bool`; None takes every width that is not pinned.
        seed: growth is deterministic for a seed and leaves the global random state alone.
        steps, lr: of step one (Adam on δ, falling linearly).
        evaluate_on: how many batches, the first and at most half, are kept from step one for scores and losses.
        rank: "decrease" ranks by the predicted decrease D; "magnitude" by |s|, as in the paper.
        path: "joint" integrates all candidates at once; "single" one by one, exact and slow.
        also: models of the same architecture that grow in the same way, such as an `AveragedModel`.
        anatomy: a trace made before, to save its time.
        method: another growth method, from `firefly.baselines`.
        progress: show step one on stderr.
        preview: find out what would grow, and change nothing.

    Returns:
        The growth: print it for a table, `to_dict()` for JSON.
    """
    check_model(model)
    split, new = read_neighborhood(neighborhood)
    check_options(loss, steps=steps, lr=lr, evaluate_on=evaluate_on, rank=rank, path=path, budget=budget)
    if optimizer is not None:
        check_optimizer(optimizer, model)
    clock, example = Clock(), bring(example, model)
    with undisturbed(model, seed):
        anatomy = trace(model, example) if anatomy is None else anatomy
        names = pick_widths(anatomy, widths)
        batches, held = hold_batches(batches, steps, evaluate_on)
        clock("trace")
        before = loss_of(model, loss, held, seed)
        over = overgrow(model, anatomy, names, split, new, seed, example)
        over.measure_births(loss, held)
        with progress_line("step one", progress) as report:
            method.descend(over, loss, batches, Steps(steps, lr, report))
        if model.training:
            over.measure_births(loss, held)
        overgrown, factor = shorten(over, loss, held, before, seed, method.trust)
        clock("descend")
        gains = method.score(over, loss, held, path)
        clock("integrate")
        chosen, epsilon = _choose(over, gains, budget, rank, method.select)
        plans, sizes = plan_commit(over, chosen)
        tensors, after, shorter = settle(
            over, plans, sizes, epsilon, loss, held, before if method.trust else math.inf, seed
        )
        change = output_change(model, example, tensors, anatomy.mirrored(sizes))
        growth = describe(anatomy, over, gains, chosen, sizes, (before, overgrown, after), change, (factor, shorter))
        if not preview:
            others = {one: evaluate(over, plans, scaled(epsilon, shorter), one) for one in map(_unwrap, also)}
            commit({model: tensors, **others}, anatomy.mirrored(sizes), plans, optimizer)
        clock("commit")
    growth.seconds.update(clock.seconds)  # type: ignore[attr-defined]
    return growth


class Firefly:
    """A model that grows on a schedule: grow + when + what happened so far.

    >>> grower = Firefly(model, example, budget=Neurons(fraction=0.3), schedule=Every(10))
    >>> if grower.due(epoch, metric): print(grower.grow(loss, batches, optimizer))
    """

    def __init__(
        self,
        model: nn.Module,
        example: Any,
        *,
        neighborhood: Iterable[Kind] = (Split(), New(50)),
        budget: Budget = Neurons(fraction=0.3),  # noqa: B008
        schedule: Schedule = Every(10),  # noqa: B008
        widths: Widths = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        check_model(model)
        self.neighborhood = tuple([neighborhood] if isinstance(neighborhood, (Split, New)) else neighborhood)
        read_neighborhood(self.neighborhood)
        self.model, self.example, self.budget, self.schedule = model, example, budget, schedule
        self.widths, self.seed, self.options = widths, seed, options
        self.history: list[dict[str, Any]] = []
        self._anatomy: Anatomy | None = None

    @property
    def anatomy(self) -> Anatomy:
        """The model's widths as they are now; traced once, and again if the model's shapes changed by other hands."""
        if self._anatomy is None or not _fits(self._anatomy, self.model):
            self._anatomy = trace(self.model, self.example)
        return self._anatomy

    def due(self, epoch: int, metric: float | None = None) -> bool:
        return self.schedule.due(epoch, metric)

    def grow(
        self,
        loss: Loss,
        batches: Iterable[Any],
        optimizer: torch.optim.Optimizer | None = None,
        also: Iterable[nn.Module] = (),
    ) -> Growth:
        """One growth now; it is added to the history."""
        anatomy = self.anatomy
        growth = self._grow(loss, batches, optimizer=optimizer, also=also)
        self._anatomy = anatomy.resized({name: after for name, (_, after) in growth.widths.items()})
        self.history.append(growth.to_dict())
        return growth

    def preview(self, loss: Loss, batches: Iterable[Any]) -> Growth:
        """What `grow` would do now; changes nothing."""
        return self._grow(loss, batches, preview=True)

    def _grow(self, loss: Loss, batches: Iterable[Any], **how: Any) -> Growth:
        return grow(
            self.model,
            loss,
            batches,
            example=self.example,
            neighborhood=self.neighborhood,
            budget=self.budget,
            widths=self.widths,
            seed=self.seed + len(self.history),
            anatomy=self.anatomy,
            **how,
            **self.options,
        )

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history, "schedule": self.schedule.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.history = list(state["history"])
        self.schedule.load_state_dict(state["schedule"])
        self._anatomy = None


def _choose(
    over: OverGrown, gains: Gains, budget: Budget, rank: str, select: Callable[..., Chosen]
) -> tuple[Chosen, Epsilon]:
    newest = {name: roster.new for name, roster in over.rosters.items()}
    candidates = {name: epsilon > 0 for name, epsilon in over.epsilon.items()}
    if rank == "decrease":
        return select(over.anatomy, gains, gains, budget, newest, candidates), over.epsilon
    slopes = {name: (gain / over.epsilon[name].clamp(min=1e-30)).abs() for name, gain in gains.items()}
    chosen = select(over.anatomy, gains, slopes, budget, newest, candidates, eligible="all")
    return chosen, {name: epsilon * torch.where(gains[name] < 0, -1.0, 1.0) for name, epsilon in over.epsilon.items()}


def describe(
    anatomy: Anatomy,
    over: OverGrown,
    gains: Gains,
    chosen: Chosen,
    sizes: Mapping[str, int],
    losses: tuple[float, float, float],
    change: float,
    factors: tuple[float, float],
) -> Growth:
    none = torch.empty(0, dtype=torch.long)
    picks = {n: {"split": chosen.split.get(n, none), "new": chosen.new.get(n, none)} for n in sizes}
    first_new = {name: over.rosters[name].size for name in sizes}
    notes = [chosen.note] if chosen.note else []
    if factors[0] < 1:
        notes.append(f"step one was shortened to {factors[0]:.2g} of its length, since the loss rose beyond that")
    if factors[1] < 1:
        notes.append(f"the grown network takes {factors[1]:.2g} of that step, since its loss rose beyond it")
    present = anatomy.sizes()
    after = {**present, **sizes}
    return Growth(
        added={n: {kind: len(numbers) for kind, numbers in kinds.items()} for n, kinds in picks.items()},
        widths={n: (present[n], after[n]) for n in over.rosters},
        loss_before=losses[0],
        loss_overgrown=losses[1],
        loss_after=losses[2],
        predicted=chosen.predicted,
        output_change=change,
        parameters=(anatomy.parameters(), anatomy.parameters(after)),
        flops=(anatomy.flops(), anatomy.flops(after)),
        gains={
            n: {
                "split": gains[n][kinds["split"]].sum().item(),
                "new": gains[n][first_new[n] + kinds["new"]].sum().item(),
            }
            for n, kinds in picks.items()
        },
        candidates=sum(int((epsilon > 0).sum()) for epsilon in over.epsilon.values()),
        total_gain=sum(gain.sum().item() for gain in gains.values()),
        spent=dict(chosen.spent),
        shortened=factors[0] * factors[1],
        notes=tuple(notes),
        seconds={},
    )


def _unwrap(other: nn.Module) -> nn.Module:
    return other.module if isinstance(other, torch.optim.swa_utils.AveragedModel) else other


def _fits(anatomy: Anatomy, model: nn.Module) -> bool:
    """Whether the anatomy still describes the model's shapes."""
    if anatomy.frozen != {name for name, p in model.named_parameters() if not p.requires_grad}:
        return False
    if not find_dormant(model).keys() <= anatomy.widths.keys():  # put there since
        return False
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    own = (lay for lay in anatomy.layouts.values() if lay.parameter)
    return all(shapes.get(lay.name) == tuple(length(runs) for runs in lay.dims) for lay in own)
