"""Growth inside a training: whom `fit` takes as a grower, and how it is asked to grow."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import nn

from firefly.descent import Firefly
from firefly.errors import FireflyError
from firefly.method import Method
from firefly.ranks.wrap import bare
from firefly.stages.capturing import capturing
from firefly.training.capture import Step


class Grower(Protocol):
    """What `fit` needs of a `firefly.Firefly`, a baseline, or an object of yours.

    The last two serve a run that is kept in a folder. With `ema`, `grow` must also take `also=`: models of the same
    architecture that grow in the same way.
    """

    def due(self, epoch: int, metric: float | None) -> bool: ...

    def grow(self, loss: Any, batches: Any, optimizer: Any) -> Any: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


SETTINGS = ("schedule", "neighborhood", "budget", "widths", "seed", "options")  # of a Firefly
GrowOn = Any | Callable[[int], Iterable[Any]] | None  # data, or the epoch's batches


def check_grower(grower: Any, model: nn.Module, ema: bool, kept: bool) -> None:
    """Refuse what cannot grow this model, or its average, or be kept in a folder."""
    needed = ("due", "grow", *(("state_dict", "load_state_dict") if kept else ()))
    missing = [name for name in needed if not callable(getattr(grower, name, None))]
    if isinstance(grower, type) or missing:
        kind = grower.__name__ if isinstance(grower, type) else type(grower).__name__
        lacks = f"lacks {', '.join(missing)}" if missing else "is a class, not an object of it"
        raise FireflyError(f"grower={kind} {lacks}: give a firefly.Firefly(model, example, ...) or an object like it")
    if bare(getattr(grower, "model", model)) is not model:
        raise FireflyError("the grower was made for another model: make it from the one that fit trains")
    if ema and not takes_also(grower):
        raise FireflyError(
            f"ema with a {type(grower).__name__}, whose grow takes no `also`: the average cannot grow; use ema=None"
        )


def tell_grower(grower: Grower | None) -> dict[str, Any] | None:
    """Whose growths they are and, of a `Firefly`, how it grows: what a run that is taken up must have in common."""
    if grower is None:
        return None
    settings = {name: getattr(grower, name) for name in SETTINGS} if isinstance(grower, Firefly) else {}
    options = {key: value for key, value in settings.pop("options", {}).items() if key != "progress"}
    return {"class": type(grower).__name__} | {key: describe(value) for key, value in (settings | options).items()}


def describe(value: Any) -> Any:
    """A setting as JSON has it: of an object what it says of itself, without where it lies in memory."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    if isinstance(value, Method):
        return value.name
    return "a function" if callable(value) else re.sub(r" at 0x\w+", "", repr(value))


def takes_also(grower: Grower) -> bool:
    parameters = inspect.signature(grower.grow).parameters
    return "also" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def grow_captured(
    grower: Grower,
    loss: Any,
    batches: Iterable[Any],
    optimizer: torch.optim.Optimizer,
    average: nn.Module | None,
    graph: bool,
) -> None:
    """One growth, its step one captured like the steps of the training; the average of the weights grows along."""
    also = {} if average is None else {"also": [average]}
    with capturing(Step if graph else None):
        grower.grow(loss, batches, optimizer, **also)
