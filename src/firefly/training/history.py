"""What a training was like: one row per epoch, when to stop early, and how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import nn

from firefly.progress import Line, format_time


@dataclass(frozen=True)
class Epoch:
    """One epoch; the test's numbers are None where it was not evaluated."""

    epoch: int  # the first is 1
    loss: float  # mean over the epoch's steps, on the training data
    lr: float  # at its start
    seconds: float  # of its steps; the first, and the first after a growth, also capture and compile
    parameters: int
    test_accuracy: float | None = None  # a fraction
    test_loss: float | None = None
    grown: bool = False  # whether the model was grown after it


@dataclass(frozen=True)
class History:
    """The epochs of a training, in order; beside them the average of the weights, if one was asked for."""

    epochs: tuple[Epoch, ...] = ()
    average: nn.Module | None = field(default=None, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.epochs)

    def __getitem__(self, number: int) -> Epoch:
        return self.epochs[number]

    @property
    def accuracies(self) -> list[float]:
        """The test accuracies, where it was evaluated."""
        return [row.test_accuracy for row in self.epochs if row.test_accuracy is not None]

    @property
    def accuracy(self) -> float | None:
        """The last test accuracy."""
        return self.accuracies[-1] if self.accuracies else None

    @property
    def seconds(self) -> float:
        """The time of all steps."""
        return sum(row.seconds for row in self.epochs)

    def add(self, row: Epoch) -> History:
        return replace(self, epochs=(*self.epochs, row))

    def mark_grown(self) -> History:
        """The model has been grown after the last epoch."""
        *before, last = self.epochs
        return replace(self, epochs=(*before, replace(last, grown=True)))

    def to_dict(self) -> dict[str, Any]:
        return {"epochs": [asdict(row) for row in self.epochs], "accuracy": self.accuracy, "seconds": self.seconds}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> History:
        return cls(tuple(Epoch(**row) for row in content["epochs"]))


Stop = int | Callable[[History], bool] | None


def should_stop(stop: Stop, history: History) -> bool:
    """Ask the user's function; or, for a patience, whether the best of all is older than that many evaluations.

    The best is the highest test accuracy or, without test data, the lowest training loss.
    """
    if stop is None:
        return False
    if callable(stop):
        return bool(stop(history))
    values = history.accuracies or [-row.loss for row in history.epochs]
    return len(values) - 1 - values.index(max(values)) >= stop


class Progress:
    """How far a training is, in one line."""

    def __init__(self, epochs: int, steps: int, shown: bool) -> None:
        self.epochs, self.steps = epochs, steps
        self.line, self.start, self.done, self.text = Line(shown), time.perf_counter(), 0, ""

    def show_step(self, epoch: int, step: int) -> None:
        self.line(f"epoch {epoch}/{self.epochs}  step {step}/{self.steps}  {self.text}")

    def show_epoch(self, row: Epoch, accuracy: float | None, last: bool) -> None:
        """At the end of an epoch: loss, accuracy, speed and the time that is left."""
        self.done += 1
        left = (time.perf_counter() - self.start) / self.done * (self.epochs - row.epoch)
        self.text = f"loss {row.loss:.4f}  " + (f"accuracy {accuracy:.2%}  " if accuracy is not None else "")
        self.text += f"{row.seconds:.2f} s/epoch  " + ("" if last else f"{format_time(left)} left")
        self.line(f"epoch {row.epoch}/{self.epochs}  {self.text}".rstrip(), last)

    def close(self) -> None:
        self.line.close()
