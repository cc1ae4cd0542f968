"""When to grow: every so many epochs, at given ones, or when a metric no longer improves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from firefly.errors import FireflyError


class Schedule:
    """`due(epoch, metric)` says whether to grow at the end of this epoch (epochs count from 0)."""

    def due(self, epoch: int, metric: float | None = None) -> bool:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise FireflyError(f"{type(self).__name__} has no state, but the checkpoint holds {sorted(state)}")


class Every(Schedule):
    """Grow after every `epochs` epochs: Every(10) at the end of epochs 9, 19, 29 …; at most `times` times."""

    def __init__(self, epochs: int, times: int | None = None) -> None:
        if not isinstance(epochs, int) or epochs < 1 or (times is not None and times < 1):
            raise FireflyError(f"Every({epochs!r}, times={times!r}): both must be whole numbers of at least 1")
        self.epochs, self.times = epochs, times

    def due(self, epoch: int, metric: float | None = None) -> bool:
        rounds, rest = divmod(epoch + 1, self.epochs)
        return rest == 0 and rounds > 0 and (self.times is None or rounds <= self.times)


class Milestones(Schedule):
    """Grow at the end of exactly these epochs."""

    def __init__(self, *epochs: int | Iterable[int]) -> None:
        flat = [e for given in epochs for e in ([given] if isinstance(given, int) else given)]
        if not flat or any(not isinstance(e, int) or e < 0 for e in flat):
            raise FireflyError(f"Milestones{tuple(flat)!r}: needs epochs, counted from 0")
        self.epochs = frozenset(flat)

    def due(self, epoch: int, metric: float | None = None) -> bool:
        return epoch in self.epochs


class Plateau(Schedule):
    """Grow when the metric has not improved by `threshold` for `patience` epochs; then start counting anew."""

    def __init__(self, patience: int = 5, threshold: float = 1e-3, mode: str = "min") -> None:
        if not isinstance(patience, int) or patience < 1:
            raise FireflyError(f"Plateau(patience={patience!r}): needs a whole number of epochs, at least 1")
        if mode not in ("min", "max"):
            raise FireflyError(f"Plateau(mode={mode!r}): must be 'min' (a loss) or 'max' (an accuracy)")
        self.patience, self.threshold, self.mode = patience, threshold, mode
        self.best: float | None = None
        self.waited = 0

    def due(self, epoch: int, metric: float | None = None) -> bool:
        if metric is None:
            raise FireflyError("Plateau needs the metric: call due(epoch, metric), e.g. with the validation loss")
        value = metric if self.mode == "min" else -metric
        if self.best is None or value < self.best - self.threshold:
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
        self.best, self.waited = state["best"], state["waited"]
