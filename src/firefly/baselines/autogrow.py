"""AutoGrow (Wen, Yan, Chen & Li 2020), which App. B.2 compares with: deepen stage by stage until it no longer helps.

Every few epochs one stage of the network gets one more unit at its end, in turn. A stage whose unit did not help, that
is, where the best accuracy on held-out data has hardly risen for a while, is closed for ever. When all are closed the
depth is found. The growth is *periodic*: it does not wait for convergence, and the learning rate stays high.

What the policy decides depends on the accuracies so far and on nothing else (`decide`), so a run that was stopped finds
its network again by deciding once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import islice
from typing import Any

import torch
from torch import nn

from firefly.anatomy.tracing import trace
from firefly.anatomy.widths import Anatomy
from firefly.baselines.nash import plan_birth
from firefly.descent import grow
from firefly.errors import FireflyError
from firefly.growth import Growth, join
from firefly.ranks.talk import average_number
from firefly.stages.losses import Loss
from firefly.stages.selection import LEAST

POLICY = ("interval", "patience", "threshold", "epochs")  # what `autogrow` takes of `decide`; the rest it knows


@dataclass(frozen=True)
class Decision:
    """What the policy has decided so far."""

    grown: tuple[int, ...]  # the stage of every unit that was added, in order
    closed: frozenset[int]  # stages that get no more
    due: bool  # whether the last of `grown` is to be added now
    done: bool  # whether all stages are closed, or time is up

    def depths(self, seed: Sequence[int]) -> tuple[int, ...]:
        """Units per stage of a network that began with these."""
        return tuple(units + self.grown.count(stage) for stage, units in enumerate(seed))


def decide(
    accuracies: Sequence[float],
    stages: int = 4,
    interval: int = 3,
    patience: int = 100,
    threshold: float = 5e-4,
    epochs: int = 1000,
    most: Sequence[int] | None = None,
) -> Decision:
    """What follows from the held-out accuracies after each epoch.

    Args:
        accuracies: as fractions, one per epoch.
        stages: how many the network has.
        interval: epochs between two growths (K in the paper).
        patience: the stage that grew last is closed if the best accuracy rose by less than `threshold` in so many
            epochs (J in the paper).
        epochs: at most so many.
        most: how many units each stage may get; None for any number.
    """
    _check(stages, interval, patience, threshold, epochs)
    grown: list[int] = []
    closed: set[int] = set()
    for epoch in range(interval, len(accuracies) + 1, interval):
        if grown and epoch > patience:
            rise = max(accuracies[:epoch]) - max(accuracies[: epoch - patience])
            closed |= {grown[-1]} if rise < threshold else set()
        closed |= {stage for stage in grown if most is not None and grown.count(stage) >= most[stage]}
        if len(closed) == stages or epoch >= epochs:
            return Decision(tuple(grown), frozenset(closed), due=False, done=True)
        last = grown[-1] if grown else -1
        turn = [stage % stages for stage in range(last + 1, last + 1 + stages)]
        grown.append(next(stage for stage in turn if stage not in closed))
    due = bool(grown) and len(accuracies) % interval == 0
    return Decision(tuple(grown), frozenset(closed), due, done=len(accuracies) >= epochs)


def autogrow(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Any],
    *,
    example: Any,
    tune: Callable[[nn.Module], Any],
    judge: Callable[[nn.Module], float],
    insert: int = 16,
    optimizer: torch.optim.Optimizer | None = None,
    anatomy: Anatomy | None = None,
    evaluate_on: int = 8,
    seed: int = 0,
    **policy: Any,
) -> Growth:
    """Wake the layers that `firefly.deepen` has put into a model, one after the other, until no place gains from them.

    Args:
        tune: trains the model in place for one epoch, with `optimizer`.
        judge: its error on data that it was not trained on, as a fraction; lower is better.
        insert: how many neurons a layer wakes with; their incoming weights are random and their outgoing ones zero.
        policy: of `decide`: interval, patience, threshold, epochs.

    The other arguments are those of `firefly.grow`. The growth that comes back has every layer that woke, and in its
    notes how long that took; the model is trained when it comes.
    """
    if unknown := sorted(policy.keys() - set(POLICY)):
        raise FireflyError(f"autogrow knows no {unknown[0]!r}: its policy is {', '.join(POLICY)}")
    if type(insert) is not int or insert < LEAST:
        raise FireflyError(f"autogrow(insert={insert!r}): a new layer needs at least {LEAST} neurons")
    anatomy = trace(model, example) if anatomy is None else anatomy
    places = anatomy.dormant_layers()
    if not places:
        raise FireflyError("autogrow: no layer is dormant: call firefly.deepen(model, example, count=...) first")
    limits: dict[str, Any] = {**policy, "stages": len(places), "most": [len(names) for names in places.values()]}
    shared = {"example": example, "optimizer": optimizer, "evaluate_on": evaluate_on}
    wake = partial(grow, model, loss, list(islice(batches, 2 * evaluate_on)), **shared)
    errors: list[float] = []
    growths: list[Growth] = []
    while not (plan := decide([1 - error for error in errors], **limits)).done:
        if plan.due:
            stage = plan.grown[-1]
            name = list(places.values())[stage][plan.grown.count(stage) - 1]
            born = plan_birth(insert, 1)
            growths.append(wake(widths=[name], anatomy=anatomy, seed=seed + len(growths), **born))
            anatomy = anatomy.resized({name: after for name, (_, after) in growths[-1].widths.items()})
        tune(model)
        errors.append(float(average_number(judge(model))))
        if not math.isfinite(errors[-1]):
            raise FireflyError(f"autogrow: the error after epoch {len(errors)} is {errors[-1]}: check tune and judge")
    if not growths:
        raise FireflyError(f"autogrow(epochs={len(errors)}): over before the first layer; make interval smaller")
    layers = ", ".join(f"{plan.grown.count(stage)} at {place}" for stage, place in enumerate(places))
    growth = reduce(join, growths)
    note = f"{len(errors)} epochs, the lowest error {min(errors):.4g}; new layers: {layers}"
    return replace(growth, notes=(*growth.notes, note))


class AutoGrow:
    """The same for `firefly.training.fit(..., test=held_out, grower=auto, stop=auto.stop)`, which can be resumed.

    `fit` keeps the accuracies. Before it goes on from a folder, `rebuild` must have brought the network to its depth:
    `fit.json` there has the accuracies, and says as `due` whether the last growth was yet to come.
    """

    example = None

    def __init__(self, append: Callable[[int], None], **policy: Any) -> None:
        self.append, self.policy = append, policy
        self.plan = decide((), **policy)

    def rebuild(self, accuracies: Sequence[float], due: bool = False) -> None:
        """Append what had been appended after these epochs, in the same order; the last one is left if it is `due`."""
        grown = decide(accuracies, **self.policy).grown
        for stage in grown[: len(grown) - due]:
            self.append(stage)

    def stop(self, history: Any) -> bool:
        """Asked by `fit` after every epoch, before `due`."""
        self.plan = decide(history.accuracies, **self.policy)
        return self.plan.done

    def due(self, epoch: int, metric: float | None = None) -> bool:
        return self.plan.due

    def grow(self, loss: Any, batches: Any, optimizer: Any) -> None:
        self.append(self.plan.grown[-1])

    def state_dict(self) -> dict[str, Any]:
        return {"grown": list(self.plan.grown)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to do: the accuracies, which `fit` keeps, tell everything."""


def _check(stages: int, interval: int, patience: int, threshold: float, epochs: int) -> None:
    counts = {"stages": stages, "interval": interval, "patience": patience, "epochs": epochs}
    for name, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise FireflyError(f"autogrow({name}={value!r}): needs a whole number of at least 1")
    if not threshold >= 0:
        raise FireflyError(f"autogrow(threshold={threshold!r}): needs a share of at least 0, such as 0.0005")
