"""When a task is learnt well enough, so that its network need not grow on (Algorithm 2: the loop's condition)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from firefly.errors import FireflyError


@dataclass(frozen=True)
class Until:
    """Stop at the first that holds.

    accuracy: on held-out images, a fraction.
    plateau: the last growth raised the accuracy by less than this fraction.
    parameters: the task has added so many parameters to the master.
    """

    accuracy: float | None = None
    plateau: float | None = None
    parameters: int | None = None

    def __post_init__(self) -> None:
        for name, least, most in (("accuracy", 0, 1), ("plateau", -1, 1), ("parameters", 1, float("inf"))):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if value is not None and not (number and least <= value <= most):
                raise FireflyError(f"Until({name}={value!r}): give a number from {least} to {most}, or None")

    def find_reason(self, accuracies: Sequence[Any], parameters: int) -> str | None:
        """Why to stop after these rounds, or None. Accuracies are None where nothing was held out."""
        if self.accuracy is not None and accuracies[-1] >= self.accuracy:
            return f"accuracy {accuracies[-1]:.4f}"
        if self.plateau is not None and len(accuracies) > 1 and accuracies[-1] - accuracies[-2] < self.plateau:
            return "plateau"
        if self.parameters is not None and parameters >= self.parameters:
            return f"{parameters:,} parameters"
        return None


def read_until(until: float | Until | None) -> Until:
    if until is None or isinstance(until, Until):
        return until or Until()
    if isinstance(until, float):
        return Until(accuracy=until)
    raise FireflyError(f"until={until!r}: give an accuracy such as 0.95, or firefly.continual.Until(...)")
