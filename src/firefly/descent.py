"""Firefly neural architecture descent: Algorithm 1 of the paper.

    1. optimise the parameters of f_t           (the user's own training loop)
    2. minimise L over the neighbourhood        `descend` on the over-grown network f_{ε,δ}
    3. keep the top η_t candidates              `integrate`, `select`, `settle`, `commit`

`grow` is one architecture descent step; `Firefly` remembers the model, the schedule and the history.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from firefly.anatomy.examples import bring
from firefly.anatomy.tracing import check_model, trace
from firefly.anatomy.widths import Anatomy, Widths, check_fit, pick_widths, read_widths
from firefly.checkpoint.architecture import note_growth
from firefly.errors import FireflyError
from firefly.growth import Clock, Growth, make_growth
from firefly.method import Method, check_options, read_method
from firefly.neighborhood.kinds import Kind
from firefly.neighborhood.overgrown import overgrow
from firefly.progress import Line
from firefly.ranks.alike import check_alike, share_buffers
from firefly.ranks.talk import average_number, decide, gather, share, together
from firefly.ranks.wrap import bare, check_wrapper, rewrap
from firefly.schedule import Every, Schedule, check_schedule
from firefly.stages.batches import hold_batches
from firefly.stages.budget import Budget, Parameters
from firefly.stages.commit import commit, list_models, make_grown, plan_commit
from firefly.stages.losses import Loss, check_loss, grown_only, measure_loss, on_copies
from firefly.stages.optimizer import check_optimizer, tell_missing
from firefly.stages.scores import scaled
from firefly.stages.selection import aim, make_ballot
from firefly.stages.step_one import Steps
from firefly.stages.trust_region import measure_change, settle, shorten
from firefly.surgery.guard import lasting
from firefly.surgery.quiet import is_training, undisturbed
from firefly.surgery.shards import whole

BUDGET = Parameters(fraction=0.3)
STEPS = 60  # of step one


def grow(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Any],
    *,
    example: Any,
    neighborhood: Kind | Iterable[Kind] | None = None,
    budget: Budget = BUDGET,
    optimizer: torch.optim.Optimizer | None = None,
    widths: Widths = None,
    seed: int = 0,
    steps: int = STEPS,
    lr: float = 0.02,
    evaluate_on: int = 8,
    held: Iterable[Any] | None = None,
    rank: str = "decrease",
    path: str = "joint",
    also: Iterable[nn.Module] = (),
    bystanders: Iterable[nn.Module] = (),
    anatomy: Anatomy | None = None,
    method: Method | str = "firefly",
    progress: bool = False,
    preview: bool = False,
) -> Growth:
    """Grow a model where more neurons lower the loss most, in place, with its optimiser.

    Args:
        model: any `nn.Module`; it stays the same object of the same class. A DistributedDataParallel is made anew in
            place. With several ranks each gives batches of its own, and all grow as one process with all batches would.
        loss: `loss(model, batch)` -> scalar tensor.
        batches: an iterable of batches, as `loss` takes them.
        example: what the model's forward takes: a tensor, a tuple of arguments, or a dict of keyword arguments; or
            `firefly.Examples`, one for each path through the model.
        neighborhood: the kinds of growth: `Split(...)`, `New(...)`, `Unlock(...)`; None takes those of the method, as a
            rule the first two.
        budget: how much to add: `Parameters`, `Neurons`, `Flops`, joined with `&`; 30 % of the parameters by default.
        optimizer: grown along, the same object; its state and waiting gradients follow the neurons. If several train
            the model, give one, and make the others anew afterwards.
        widths: names, or a filter `width -> bool`; None takes every width that is not pinned.
        seed: growth is deterministic for a seed and leaves the global random state alone.
        steps: of step one, Adam on δ.
        lr: its rate at first; it falls linearly.
        evaluate_on: how many batches scores and losses are taken on.
        held: these batches, e.g. of a validation set; None keeps the first of `batches`, at most half, from step one.
        rank: "decrease" ranks by the predicted decrease D; "magnitude" by |s|, as in the paper.
        path: "joint" integrates all candidates at once; "single" one by one, exact and slow.
        also: models of the same architecture that grow in the same way, such as an `AveragedModel`.
        bystanders: other modules that the loss runs, such as a discriminator, whose buffers must stay as they are.
        anatomy: a trace made before, to save its time.
        method: another growth method, by name or from `firefly.baselines`.
        progress: show step one on stderr.
        preview: find out what would grow, and change nothing.

    Returns:
        The growth: print it for a table, `to_dict()` for JSON.
    """
    wrapped, model = model, bare(model)
    check_wrapper(wrapped)
    check_model(model)
    (method, kinds), others = read_method(method, neighborhood), list_models(also)
    how = {"steps": steps, "lr": lr, "evaluate_on": evaluate_on, "rank": rank, "path": path, "seed": seed}
    check_options(loss=loss, budget=budget, anatomy=anatomy, **how)
    check_optimizer(optimizer, model)
    clock, line, example, loss = Clock(), Line(progress), bring(example, model), on_copies(loss)
    with whole(model, optimizer) as shards, undisturbed(model, seed, bystanders), ExitStack() as undo:
        # trace
        with together():
            anatomy = trace(model, example) if anatomy is None else check_fit(anatomy, model)
            names = pick_widths(anatomy, widths)
            batches, held = hold_batches(batches, steps, evaluate_on, held)
            check_loss(loss, model, held)
        counts = {"number of batches": batches.count(), "number of held batches": len(held), "also": len(others)}
        asked = {"widths": names, "neighborhood": kinds, "budget": budget, "method": method.name, "preview": preview}
        check_alike(model, optimizer, {**counts, **asked, **how})
        share_buffers(model, wrapped, undo)
        before = measure_loss(loss, model, held, seed)
        limit = before if method.trust else math.inf
        clock("trace")
        # over-grow
        over = overgrow(model, anatomy, names, kinds, seed, example)
        with grown_only():
            over.measure_births(loss, held)
            # step one
            directions = method.descend(over, loss, batches, Steps(steps, lr, lambda k, n: line(f"step one {k}/{n}")))
        over.turn(directions)
        if directions.turned or is_training(model):
            over.measure_births(loss, held)
        overgrown, factor = shorten(over, loss, held, limit, seed)
        clock("descend")
        # scores
        gains = method.score(over, loss, held, path)
        clock("integrate")
        # select
        chosen = decide(method.select(make_ballot(over, gains, budget, rank)))
        plans, sizes = plan_commit(over, chosen)
        epsilon = aim(over, gains, rank)
        tensors, after, shorter = settle(over, plans, sizes, epsilon, loss, held, limit, seed)
        share(tensors.values())
        change = max(gather(measure_change(model, example, tensors, anatomy.mirrored(sizes))))
        growth = make_growth(over, gains, chosen, sizes, (before, overgrown, after), change, (factor, shorter))
        # commit
        if not preview:
            grown = {other: make_grown(over, plans, scaled(epsilon, shorter), other) for other in others}
            with lasting():  # what has been committed is written down, whoever interrupts
                commit({model: tensors, **grown}, anatomy.mirrored(sizes), plans, optimizer)
                for one in (model, *others):
                    note_growth(one, growth.to_dict())
                rewrap(wrapped)
                undo.pop_all()
        clock("commit")
    line.close(clear=True)
    notes = growth.notes + tell_missing(optimizer, model, tensors) + shards.notes
    return replace(growth, seconds=clock.seconds, notes=notes)


class Firefly:
    """A model that grows on a schedule: grow + when + what happened so far. Its options are those of `grow`.

    ```python
    grower = firefly.Firefly(model, example, budget=firefly.Parameters(fraction=0.3), schedule=firefly.Every(10))
    if grower.due(epoch, metric):
        print(grower.grow(loss, batches, optimizer))
    ```

    Args:
        schedule: when to grow: `Every(...)`, `Milestones(...)`, `Plateau(...)`, or an object of yours with `due`.

    Attributes:
        history: every growth so far, as `Growth.to_dict` says it.
    """

    def __init__(
        self,
        model: nn.Module,
        example: Any,
        *,
        neighborhood: Kind | Iterable[Kind] | None = None,
        budget: Budget = BUDGET,
        schedule: Schedule = Every(10),  # noqa: B008
        widths: Widths = None,
        seed: int = 0,
        steps: int = STEPS,
        lr: float = 0.02,
        evaluate_on: int = 8,
        rank: str = "decrease",
        path: str = "joint",
        method: Method | str = "firefly",
        progress: bool = False,
    ) -> None:
        check_model(bare(model))
        how = {"steps": steps, "lr": lr, "evaluate_on": evaluate_on, "rank": rank, "path": path}
        check_options(budget=budget, seed=seed, **how)
        check_schedule(schedule)
        self.model, self.example, self.schedule = model, example, schedule
        method, self.neighborhood = read_method(method, neighborhood)
        self.widths, self.budget, self.seed = read_widths(widths), budget, seed
        self.options: dict[str, Any] = {**how, "method": method, "progress": progress}
        self.history: list[dict[str, Any]] = []
        self._anatomy: Anatomy | None = None

    @property
    def anatomy(self) -> Anatomy:
        """The model's widths as they are now; traced once, and again if the model's shapes changed by other hands."""
        if self._anatomy is None or not self._anatomy.fits(bare(self.model)):
            self._anatomy = trace(self.model, self.example)
        return self._anatomy

    def due(self, epoch: int, metric: float | None = None) -> bool:
        """Whether to grow after this epoch; several ranks must all ask, and the mean of their metrics counts."""
        return decide(self.schedule.due(epoch, average_number(metric)))

    def grow(
        self,
        loss: Loss,
        batches: Iterable[Any],
        optimizer: torch.optim.Optimizer | None = None,
        also: Iterable[nn.Module] = (),
        *,
        held: Iterable[Any] | None = None,
        bystanders: Iterable[nn.Module] = (),
    ) -> Growth:
        """One growth now; it is added to the history."""
        anatomy = self.anatomy
        with lasting():  # what has been committed is written down, whoever interrupts
            growth = self._grow(loss, batches, optimizer=optimizer, also=also, held=held, bystanders=bystanders)
            self._anatomy = anatomy.resized({name: after for name, (_, after) in growth.widths.items()})
            self.history.append(growth.to_dict())
        return growth

    def preview(
        self,
        loss: Loss,
        batches: Iterable[Any],
        *,
        held: Iterable[Any] | None = None,
        bystanders: Iterable[nn.Module] = (),
    ) -> Growth:
        """What `grow` would do now; changes nothing."""
        return self._grow(loss, batches, held=held, bystanders=bystanders, preview=True)

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
        if not isinstance(state, Mapping) or not {"schedule", "history"} <= state.keys():
            raise FireflyError("this is no state of a grower: give what its state_dict() returned")
        self.schedule.load_state_dict(state["schedule"])  # before the rest: it may refuse
        self.history = list(state["history"])
        self._anatomy = None
