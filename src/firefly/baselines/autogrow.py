"""AutoGrow (Wen, Yan, Chen & Li 2020), which App. B.2 compares with: deepen stage by stage until it no longer helps.

Every few epochs one stage of the network gets one more unit at its end, in turn. A stage whose unit did not help, that
is, where the best accuracy on held-out data has hardly risen for a while, is closed for ever. When all are closed the
depth is found. The growth is *periodic*: it does not wait for convergence, and the learning rate stays high.

What the policy decides depends on the accuracies so far and on nothing else (`decide`), so a run that was stopped finds
its network again by deciding once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from firefly.errors import FireflyError


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
) -> Decision:
    """What follows from the held-out accuracies after each epoch.

    Args:
        accuracies: as fractions, one per epoch.
        stages: how many the network has.
        interval: epochs between two growths (K in the paper).
        patience: the stage that grew last is closed if the best accuracy rose by less than `threshold` in so many
            epochs (J in the paper).
        epochs: at most so many.
    """
    _check(stages, interval, patience, threshold, epochs)
    grown: list[int] = []
    closed: set[int] = set()
    for epoch in range(interval, len(accuracies) + 1, interval):
        if grown and epoch > patience:
            rise = max(accuracies[:epoch]) - max(accuracies[: epoch - patience])
            closed |= {grown[-1]} if rise < threshold else set()
        if len(closed) == stages or epoch >= epochs:
            return Decision(tuple(grown), frozenset(closed), due=False, done=True)
        last = grown[-1] if grown else -1
        turn = [stage % stages for stage in range(last + 1, last + 1 + stages)]
        grown.append(next(stage for stage in turn if stage not in closed))
    due = bool(grown) and len(accuracies) % interval == 0
    return Decision(tuple(grown), frozenset(closed), due, done=len(accuracies) >= epochs)


def autogrow(train: Callable[[], float], append: Callable[[int], None], **policy: Any) -> tuple[Decision, list[float]]:
    """Grow a network deeper until no stage gains from it.

    Args:
        train: trains for one epoch and returns the accuracy on held-out data, as a fraction.
        append: `append(stage)` puts one more unit at the end of a stage, with its parameters into the optimiser.
        policy: of `decide`: stages, interval, patience, threshold, epochs.

    Returns:
        What was decided, and the accuracies.
    """
    accuracies: list[float] = []
    plan = decide(accuracies, **policy)
    while not plan.done:
        accuracies.append(train())
        plan = decide(accuracies, **policy)
        if plan.due:
            append(plan.grown[-1])
    return plan, accuracies


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
