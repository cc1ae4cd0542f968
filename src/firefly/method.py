"""A way to grow: the stages of `firefly.grow` that it replaces (`firefly.baselines`), and the options of all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from firefly.anatomy.widths import Anatomy
from firefly.errors import FireflyError
from firefly.neighborhood.kinds import Kind, New, Split, read_neighborhood
from firefly.neighborhood.overgrown import Directions, OverGrown
from firefly.stages.budget import Budget
from firefly.stages.losses import Loss
from firefly.stages.scores import Gains, integrate
from firefly.stages.selection import Chosen, select
from firefly.stages.step_one import Steps, descend


@dataclass(frozen=True)
class Method:
    """The stages that other methods replace: step one, the scores, and the choice; and what it grows unless told."""

    name: str = "firefly"
    descend: Callable[[OverGrown, Loss, Iterable[Any], Steps], Directions] = descend
    score: Callable[[OverGrown, Loss, list[Any], str], Gains] = integrate
    select: Callable[..., Chosen] = select  # of a Ballot
    trust: bool = True  # shorten the step where the loss would rise
    neighborhood: tuple[Kind, ...] = (Split(), New())


METHODS: dict[str, Callable[[], Method]] = {"firefly": Method}  # by name; `firefly.baselines` adds its own
SEARCHES: dict[str, str] = {}  # names of those that train copies, or steer the training: how they are called instead


def find_method(method: Method | str) -> Method:
    """The method of this name, or the given one."""
    if isinstance(method, Method):
        return method
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]()
    if callable(method):
        name = getattr(method, "__name__", repr(method))
        way = "call it instead of firefly.grow" if name not in METHODS else f"write method={name!r}, or call it"
        raise FireflyError(f"method={name}: that is a function: {way}")
    if isinstance(method, str) and method in SEARCHES:
        raise FireflyError(f"method={method!r} is no growth by itself: call firefly.baselines.{SEARCHES[method]}")
    close = get_close_matches(method, METHODS, 1) if isinstance(method, str) else []
    hint = f"did you mean {close[0]!r}? Names are" if close else "give firefly.baselines.…(), or a name:"
    raise FireflyError(f"method={method!r}: {hint} {', '.join(sorted(METHODS))}")


def read_method(method: Method | str, neighborhood: Kind | Iterable[Kind] | None) -> tuple[Method, tuple[Kind, ...]]:
    """The method, and the kinds of growth: those given, or the method's own."""
    found = find_method(method)
    return found, read_neighborhood(found.neighborhood if neighborhood is None else neighborhood)


def check_options(
    *,
    budget: Any,
    seed: Any,
    steps: Any,
    lr: Any,
    evaluate_on: Any,
    rank: Any,
    path: Any,
    anatomy: Any = None,
    loss: Any = ...,
) -> None:
    """Refuse what no growth can work with, before anything is done."""
    if loss is not ... and (not callable(loss) or type(loss).__module__.startswith("torch.nn.")):
        raise FireflyError(f"loss must be a function loss(model, batch) -> scalar tensor, not {type(loss).__name__}")
    for name, value in (("steps", steps), ("evaluate_on", evaluate_on)):
        if type(value) is not int or value < 1:
            raise FireflyError(f"{name}={value!r}: must be a whole number of at least 1")
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise FireflyError(f"seed={seed!r}: must be a whole number of at least 0")
    if isinstance(lr, bool) or not isinstance(lr, (int, float)) or not 0 < lr < math.inf:
        raise FireflyError(f"lr={lr!r}: must be a number above 0")
    for name, value, allowed in (("rank", rank, ("decrease", "magnitude")), ("path", path, ("joint", "single"))):
        if value not in allowed:
            raise FireflyError(f"{name}={value!r}: must be {' or '.join(map(repr, allowed))}")
    if not isinstance(budget, Budget):
        raise FireflyError(f"budget={budget!r}: must be firefly.Neurons, Parameters or Flops, joined with &")
    if anatomy is not None and not isinstance(anatomy, Anatomy):
        raise FireflyError(f"anatomy is a {type(anatomy).__name__}: give what firefly.trace(model, example) returns")
