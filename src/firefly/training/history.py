"""What a training was like: one row per epoch, when to stop early, and one line of live progress."""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from firefly.errors import FireflyError


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
    """The epochs of a training, in order."""

    epochs: tuple[Epoch, ...] = ()

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

    def add(self, row: Epoch) -> "History":
        return History((*self.epochs, row))

    def to_dict(self) -> dict[str, Any]:
        return {"epochs": [asdict(row) for row in self.epochs], "accuracy": self.accuracy, "seconds": self.seconds}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "History":
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


def check_stop(stop: Stop) -> None:
    if not (stop is None or callable(stop) or (isinstance(stop, int) and stop > 0)):
        raise FireflyError(f"stop={stop!r}: give a number of evaluations without improvement, or a function of History")


class Progress:
    """One line that lives: rewritten in place on a terminal, else a new one now and then."""

    def __init__(self, epochs: int, steps: int, shown: bool, stream: TextIO | None = None, pause: float = 10.0) -> None:
        self.epochs, self.steps, self.shown, self.pause = epochs, steps, shown, pause
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty()
        self.last = self.start = time.perf_counter()
        self.done = 0
        self.text = ""

    def show_step(self, epoch: int, step: int) -> None:
        """Within a slow epoch, on a terminal: how far it is."""
        if self.shown and self.live and time.perf_counter() - self.last > 0.5:
            self.write(f"epoch {epoch}/{self.epochs}  step {step}/{self.steps}  {self.text}")

    def show_epoch(self, row: Epoch, accuracy: float | None) -> None:
        """At the end of an epoch: loss, accuracy, speed and the time that is left."""
        if not self.shown:
            return
        self.done += 1
        left = (time.perf_counter() - self.start) / self.done * (self.epochs - row.epoch)
        self.text = f"loss {row.loss:.4f}  " + (f"accuracy {accuracy:.2%}  " if accuracy is not None else "")
        self.text += f"{row.seconds:.2f} s/epoch  {format_time(left)} left"
        if self.live or row.epoch == self.epochs or time.perf_counter() - self.last > self.pause:
            self.write(f"epoch {row.epoch}/{self.epochs}  {self.text}")

    def close(self) -> None:
        if self.shown and self.live:
            self.stream.write("\n")
            self.stream.flush()

    def write(self, text: str) -> None:
        self.stream.write(f"\r\x1b[K{text}" if self.live else f"{text}\n")
        self.stream.flush()
        self.last = time.perf_counter()


def format_time(seconds: float) -> str:
    """1:02:03, or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
