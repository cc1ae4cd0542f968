"""When to grow: every so many epochs, at given ones, or when a metric no longer improves."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from firefly.errors import FireflyError


class Schedule:
    """`due(epoch, metric)` says whether to grow at the end of this epoch (epochs count from 0).

    One of your own needs no more than `due`; with a memory, it also keeps that in `state_dict` and `load_state_dict`.
    """

    def due(self, epoch: int, metric: float | None = None) -> bool:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; a wrong one is refused and changes nothing."""
        check_keys(self, state, ())


class Every(Schedule):
    """Grow after every `epochs` epochs: Every(10) at the end of epochs 9, 19, 29 …; at most `times` times."""

    def __init__(self, epochs: int, times: int | None = None) -> None:
        if not is_whole(epochs, 1) or not (times is None or is_whole(times, 1)):
            raise FireflyError(f"Every({epochs!r}, times={times!r}): both must be whole numbers of at least 1")
        self.epochs, self.times = int(epochs), times if times is None else int(times)

    def __repr__(self) -> str:
        return f"Every({self.epochs})" if self.times is None else f"Every({self.epochs}, times={self.times})"

    def due(self, epoch: int, metric: float | None = None) -> bool:
        rounds, rest = divmod(check_epoch(epoch) + 1, self.epochs)
        return rest == 0 and (self.times is None or rounds <= self.times)


class Milestones(Schedule):
    """Grow at the end of exactly these epochs."""

    def __init__(self, *epochs: int | Iterable[int]) -> None:
        flat = [one for given in epochs for one in (given if isinstance(given, Iterable) else [given])]
        if not flat or not all(is_whole(epoch, 0) for epoch in flat):
            raise FireflyError(f"Milestones{tuple(flat)!r}: needs epochs, whole numbers counted from 0")
        self.epochs = frozenset(map(int, flat))

    def __repr__(self) -> str:
        return f"Milestones({', '.join(map(str, sorted(self.epochs)))})"

    def due(self, epoch: int, metric: float | None = None) -> bool:
        return check_epoch(epoch) in self.epochs


class Plateau(Schedule):
    """Grow when the metric has not improved by `threshold` for `patience` epochs; then start counting anew.

    A metric that is not finite is none that improves.
    """

    def __init__(self, patience: int = 5, threshold: float = 1e-3, mode: str = "min") -> None:
        if not is_whole(patience, 1):
            raise FireflyError(f"Plateau(patience={patience!r}): needs a whole number of epochs, at least 1")
        if not is_finite(threshold) or threshold < 0:
            raise FireflyError(f"Plateau(threshold={threshold!r}): needs a number, 0 or more")
        if mode not in ("min", "max"):
            raise FireflyError(f"Plateau(mode={mode!r}): must be 'min' (a loss) or 'max' (an accuracy)")
        self.patience, self.threshold, self.mode = int(patience), float(threshold), mode
        self.best: float | None = None
        self.waited = 0

    def __repr__(self) -> str:
        return f"Plateau(patience={self.patience}, threshold={self.threshold:g}, mode={self.mode!r})"

    def due(self, epoch: int, metric: float | None = None) -> bool:
        check_epoch(epoch)
        value = read_metric(metric) * (1 if self.mode == "min" else -1)
        if math.isfinite(value) and (self.best is None or value < self.best - self.threshold):
            self.best, self.waited = value, 0
            return False
        self.waited += 1
        if self.waited < self.patience:
            return False
        self.best, self.waited = None, 0
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; a wrong one is refused and changes nothing."""
        check_keys(self, state, ("best", "waited"))
        best, waited = state["best"], state["waited"]
        if not (best is None or is_finite(best)) or not is_whole(waited, 0):
            raise FireflyError(f"{self!r} cannot go on from best={best!r}, waited={waited!r}: the state is damaged")
        self.best, self.waited = best if best is None else float(best), int(waited)


# ---- what is given ---------------------------------------------------------------------------------------------------


def check_schedule(schedule: Any) -> Schedule:
    """The schedule, if it is one: before the first growth, not at it."""
    if not isinstance(schedule, Schedule):
        named = f"{schedule.__name__} itself" if isinstance(schedule, type) else repr(schedule)
        ways = "Every(10), Milestones(3, 6), Plateau(), or a class of your own that extends firefly.schedule.Schedule"
        raise FireflyError(f"schedule={named} does not say when to grow: give {ways}")
    return schedule


def check_keys(schedule: Schedule, state: Any, keys: tuple[str, ...]) -> None:
    """Refuse a state that is not of such a schedule."""
    found = sorted(map(str, state)) if isinstance(state, dict) else state
    if not isinstance(state, dict) or found != list(keys):
        wanted = " and ".join(keys) or "no state"
        raise FireflyError(
            f"{schedule!r} goes on from {wanted}, not from {found!r}: give the schedule that the run was saved with"
        )


def check_epoch(epoch: Any) -> int:
    if not is_whole(epoch, 0):
        raise FireflyError(f"due({epoch!r}, ...): epochs are whole numbers that count from 0")
    return int(epoch)


def read_metric(metric: Any) -> float:
    """A metric, also as a tensor of one number."""
    if metric is None:
        raise FireflyError("Plateau needs the metric: call due(epoch, metric), e.g. with the validation loss")
    try:
        return float(metric)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FireflyError(f"Plateau needs one number as the metric, not {metric!r}") from error


def is_whole(value: Any, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_finite(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
